/* y[m, n] = (residual[m, n] +) sum over k of x[m, k] * w[n, k]. */
static inline void CAT(NAME, _store)(float *restrict y, const float *restrict residual, f32x8 sum, long m, long n) {
  const long at = m * N + n;
  for (long l = 0; l < 8 && n + l < N; l++) y[at + l] = ADD ? residual[at + l] + sum[l] : sum[l];
}

static inline __attribute__((always_inline)) void CAT(NAME, _rows)(
    float *restrict y, const float *restrict residual, const float *restrict x, int rows, long m, long n, const uint8_t *const *restrict part) {
  f32x8 sums[TILE][BLOCKS];
  CAT(NAME, _tile)(sums, x + m * K, rows, part);
  for (int r = 0; r < rows; r++)
    for (int b = 0; b < BLOCKS && 8 * (n + b) < N; b++) CAT(NAME, _store)(y, residual, sums[r][b], m + r, 8 * (n + b));
}

void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  float *restrict y = a[0];
  const float *restrict x = a[1];
  const uint8_t *restrict w = a[2];
  const float *restrict residual = ADD ? a[3] : NULL;
  const long rows = M, blocks = (N + 7) / 8, share = BLOCKS * SHARE;
  (void)dims;
  for (long c; (c = egg_claim(ctx)) * share < blocks;)
    for (long n = c * share; n < (c + 1) * share && n < blocks; n += BLOCKS) {
      const uint8_t *part[BLOCKS];
      for (int b = 0; b < BLOCKS; b++) part[b] = w + (n + b < blocks ? n + b : n) * BLOCK_BYTES;
      long m = 0;
      for (; m + TILE <= rows; m += TILE) CAT(NAME, _rows)(y, residual, x, TILE, m, n, part);
      for (; m < rows; m++) CAT(NAME, _rows)(y, residual, x, 1, m, n, part);
    }
}
#undef COLUMNS
#undef BLOCK_BYTES
