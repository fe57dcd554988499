/* Places of each row's elements in order: runs that are in order are merged, from one element on, until one run is left. */
static inline int CAT(NAME, _before)(TYPE a, TYPE b) { return (DESCENDING ? a > b : a < b) || (b != b && a == a); }

/* The runs from[0..cut) and from[cut..n) as one; of equal elements those of the first run come first. */
static inline void CAT(NAME, _merge)(int32_t *restrict to, const int32_t *restrict from, const TYPE *restrict x, long cut, long n) {
  long i = 0, j = cut;
  for (long at = 0; at < n; at++) to[at] = j == n || (i < cut && !CAT(NAME, _before)(x[from[j]], x[from[i]])) ? from[i++] : from[j++];
}

void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  const long rows = ROWS, n = N, room = EGG_SCRATCH / (long)sizeof(int32_t);
  (void)dims;
  for (long row; (row = egg_claim(ctx)) < rows;) {
    int32_t *restrict out = (int32_t *)a[0] + row * n;
    int32_t *other = n <= room ? ctx->scratch : malloc((size_t)n * sizeof *other);
    const TYPE *restrict x = (const TYPE *)a[1] + row * n;
    int32_t *from = out, *to = other;
    if (!other) abort();
    for (long i = 0; i < n; i++) out[i] = (int32_t)i;
    for (long run = 1; run < n; run *= 2) {
      for (long at = 0; at < n; at += 2 * run) {
        const long end = n - at < 2 * run ? n - at : 2 * run;
        CAT(NAME, _merge)(to + at, from + at, x, run < end ? run : end, end);
      }
      int32_t *done = to;
      to = from;
      from = done;
    }
    if (from != out) memcpy(out, from, (size_t)n * sizeof *out);
    if (n > room) free(other);
  }
}
