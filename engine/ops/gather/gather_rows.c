/* Row t of y is row rows[t] of x; a row outside x reads its nearest one. */
void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  TYPE *restrict y = a[0];
  const int32_t *restrict rows = a[1];
  const TYPE *restrict x = a[2];
  const long count = T, width = WIDTH, limit = (LIMIT) / width;
  (void)dims;
  for (long t; (t = egg_claim(ctx)) < count;) {
    long row = rows[t];
    row = row < 0 ? 0 : row < limit ? row : limit - 1;
    memcpy(y + t * width, x + row * width, (size_t)width * sizeof(TYPE));
  }
}
