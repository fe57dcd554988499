/* y[row, k] = RESULT(x[k] / sqrt(mean of squares of x + EPS) * w[k]), where x is the expression's row. The squares are
   summed in 8 lanes, k modulo 8, and then the lanes in order: the same bits for every row count and thread count. */
void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  float *restrict y = a[0];
  const float *restrict w = a[1];
  LEAVES
  const long rows = M;
  (void)dims;
  for (long row; (row = egg_claim(ctx)) < rows;) {
    float *restrict q = y + row * K;
    FILL_ROW
    const float scale = egg_rms_scale(q, K, EPS);
    for (long k = 0; k < K; k++) q[k] = RESULT(q[k] * scale * w[k]);
  }
}
