/* y[m, k] = x[m, k] / sqrt(mean of squares of row m + EPS) * w[k]. The squares are summed in 8 lanes, k modulo 8, and then
   the lanes in order: the same bits for every row count and thread count. */
void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  float *restrict y = a[0];
  const float *restrict x = a[1], *restrict w = a[2];
  const long rows = M;
  (void)dims;
  for (long m; (m = egg_claim(ctx)) < rows;) {
    const float *restrict p = x + m * K;
    float *restrict q = y + m * K;
    const float scale = egg_rms_scale(p, K, EPS);
    for (long k = 0; k < K; k++) q[k] = p[k] * scale * w[k];
  }
}
