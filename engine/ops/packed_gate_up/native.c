/* y[m, n] = silu(gate) * up of two products of the same rows; of BLOCKS blocks, half are gates and half ups. */
static inline __attribute__((always_inline)) void CAT(NAME, _rows)(
    float *restrict y, const float *restrict x, int rows, long m, long n, const uint8_t *const *restrict part) {
  f32x8 sums[TILE][BLOCKS];
  CAT(NAME, _tile)(sums, x + m * K, rows, part);
  egg_swiglu(sums[0], rows * BLOCKS / 2);
  for (int r = 0; r < rows; r++)
    for (int b = 0; b < BLOCKS / 2; b++) {
      const long at = 8 * (n + b);
      egg_store_part(y + (m + r) * N + at, sums[0][r * BLOCKS / 2 + b], N - at);
    }
}

void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  float *restrict y = a[0];
  const float *restrict x = a[1];
  const uint8_t *restrict gate = a[2], *restrict up = a[3];
  const long rows = M, blocks = (N + 7) / 8, share = BLOCKS / 2 * SHARE;
  (void)dims;
  for (long c; (c = egg_claim(ctx)) * share < blocks;)
    for (long n = c * share; n < (c + 1) * share && n < blocks; n += BLOCKS / 2) {
      const uint8_t *part[BLOCKS];
      for (int b = 0; b < BLOCKS / 2; b++) {
        const long block = n + b < blocks ? n + b : n;
        part[2 * b] = gate + block * BLOCK_BYTES;
        part[2 * b + 1] = up + block * BLOCK_BYTES;
      }
      long m = 0;
      for (; m + TILE <= rows; m += TILE) CAT(NAME, _rows)(y, x, TILE, m, n, part);
      for (; m < rows; m++) CAT(NAME, _rows)(y, x, 1, m, n, part);
    }
}
#undef COLUMNS
#undef BLOCK_BYTES
