/* y[n] = x[indexes[n]] through two views; an index outside the data reads its nearest element. */
void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  TYPE *restrict y = a[0];
  const int32_t *restrict indexes = a[1];
  const TYPE *restrict x = a[2];
  const long count = COUNT, limit = LIMIT, share = 4096;
  (void)dims;
  for (long c; (c = egg_claim(ctx)) * share < count;)
    for (long n = c * share; n < (c + 1) * share && n < count; n++) {
      long at = indexes[INDEX(n)];
      at = at < 0 ? 0 : at < limit ? at : limit - 1;
      y[n] = x[DATA(at)];
    }
}
