/* Rows of x to int16 codes, scales and sums; the row format is in __init__.py. */
void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  uint8_t *restrict out = a[0];
  const float *restrict x = a[1];
  const long rows = M;
  (void)dims;
  for (long m; (m = egg_claim(ctx)) < rows;) egg_quantize_row(out + m * EGG_ROW_BYTES(K, G), x + m * K, K, G);
}
