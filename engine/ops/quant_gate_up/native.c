/* y[m, n] = silu(gate) * up, the two products of the same rows with two packed weights: they share the rows' loads, and
   what lies between the products and the result never reaches memory. */
static inline void CAT(NAME, _store)(float *restrict y, f32x8 gate, f32x8 up, long m, long n) {
  for (long l = 0; l < 8 && n + l < N; l++) {
    const float sigmoid = 1.0f / (egg_exp2f(gate[l] * -1.4426950408889634f) + 1.0f);
    y[m * N + n + l] = gate[l] * sigmoid * up[l];
  }
}

void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  float *restrict y = a[0];
  const uint8_t *restrict x = a[1], *restrict gate = a[2], *restrict up = a[3];
  const long rows = M, blocks = (N + 7) / 8, size = GROUPS * GROUP_BYTES, share = BLOCKS / 2 * SHARE;
  (void)dims;
  if (rows == 1) {
    for (long c; (c = egg_claim(ctx)) * share < blocks;)
      for (long n = c * share; n < (c + 1) * share && n < blocks; n += BLOCKS / 2) {
        f32x8 sums[BLOCKS];
        const uint8_t *part[BLOCKS];
        for (int b = 0; b < BLOCKS / 2; b++) {
          const long block = n + b < blocks ? n + b : n;
          part[2 * b] = gate + block * size;
          part[2 * b + 1] = up + block * size;
        }
        CAT(NAME, _row)(sums, x, part);
        for (int b = 0; b < BLOCKS / 2 && n + b < blocks; b++) CAT(NAME, _store)(y, sums[2 * b], sums[2 * b + 1], 0, 8 * (n + b));
      }
    return;
  }
  i16x16 *restrict codes = ctx->scratch;
  for (long n; (n = egg_claim(ctx)) < blocks;) {
    const uint8_t *const both[2] = {gate + n * size, up + n * size};
    CAT(NAME, _unpack)(codes, both[0]);
    CAT(NAME, _unpack)(codes + K / 2, both[1]);
    f32x8 sums[TILE][2];
    long m = 0;
    for (; m + TILE <= rows; m += TILE) {
      CAT(NAME, _tile)(sums, x + m * ROW_BYTES, TILE, codes, both);
      for (int r = 0; r < TILE; r++) CAT(NAME, _store)(y, sums[r][0], sums[r][1], m + r, 8 * n);
    }
    for (; m < rows; m++) {
      CAT(NAME, _tile)(sums, x + m * ROW_BYTES, 1, codes, both);
      CAT(NAME, _store)(y, sums[0][0], sums[0][1], m, 8 * n);
    }
  }
}
#undef GROUPS
#undef CODE_VECTORS
#undef GROUP_BYTES
#undef ROW_BYTES
