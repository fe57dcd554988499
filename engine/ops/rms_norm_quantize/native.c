/* Quantised rows of x / sqrt(mean of squares + EPS) * w, with the bits of RowNorm followed by QuantizeRows. */
void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  uint8_t *restrict out = a[0];
  const float *restrict x = a[1], *restrict w = a[2];
  float *restrict row = ctx->scratch;
  const long rows = M;
  (void)dims;
  for (long m; (m = egg_claim(ctx)) < rows;) {
    const float *restrict p = x + m * K;
    const float scale = egg_rms_scale(p, K, EPS);
    for (long k = 0; k < K; k++) row[k] = p[k] * scale * w[k];
    egg_quantize_row(out + m * EGG_ROW_BYTES(K, G), row, K, G);
  }
}
