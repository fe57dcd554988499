/* y[t] = sum over a token's SHARED pairs of their weight times their row, in order. */
void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  const long tokens = TOKENS, shared = SHARED, width = WIDTH;
  const float *restrict weights = a[2];
  const int32_t *restrict place = (const int32_t *)a[3] + tokens * shared;
  (void)dims;
  for (long t; (t = egg_claim(ctx)) < tokens;) {
    float *restrict y = (float *)a[0] + t * width;
    for (long c = 0; c < width; c += 8) {
      f32x8 sum = {0};
      for (long j = t * shared; j < (t + 1) * shared; j++)
        sum = egg_fma(egg_load_part((const float *)a[1] + place[j] * width + c, width - c), egg_spread(weights[j]), sum);
      egg_store_part(y + c, sum, width - c);
    }
  }
}
