/* Rows of (x - mean) / sqrt(variance + EPS) * w + b. */
void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  float *restrict y = a[0];
  const float *restrict x = a[1], *restrict w = a[2], *restrict b = a[3];
  const long rows = M;
  (void)dims;
  for (long m; (m = egg_claim(ctx)) < rows;) {
    float *restrict row = y + m * K;
    const float mean = egg_row_sum(x + m * K, K) * (1.0f / (float)K);
    for (long k = 0; k < K; k++) row[k] = x[m * K + k] - mean;
    const float scale = egg_rms_scale(row, K, EPS);
    for (long k = 0; k < K; k++) row[k] = row[k] * scale * w[k] + b[k];
  }
}
