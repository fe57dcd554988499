/* y[m, n] = (residual[m, n] +) sum over k of x[m, k] * w[n, k]. One row reads the codes straight from the weights, BLOCKS
   streams at a time; more rows unpack each block once and run tiles of TILE rows over it. */
static inline void CAT(NAME, _store)(float *restrict y, const float *restrict residual, f32x8 sum, long m, long n) {
  const long at = m * N + n;
#if ADD
  if (n + 8 <= N) {
    egg_store_f32x8(y + at, egg_load_f32x8(residual + at) + sum);
  } else {
    for (long l = 0; n + l < N; l++) y[at + l] = residual[at + l] + sum[l];
  }
#else
  (void)residual;
  if (n + 8 <= N) {
    egg_store_f32x8(y + at, sum);
  } else {
    for (long l = 0; n + l < N; l++) y[at + l] = sum[l];
  }
#endif
}

static void CAT(NAME, _many)(float *restrict y, const float *restrict residual, const uint8_t *restrict x, const uint8_t *restrict w, long rows, egg_ctx *ctx) {
  const long blocks = (N + 7) / 8, pairs = (blocks + 1) / 2;
  i16x16 *restrict codes = ctx->scratch;
  for (long c; (c = egg_claim(ctx)) < pairs;) {
    const long last = 2 * c + 1 < blocks ? 2 * c + 1 : 2 * c;
    const uint8_t *const both[2] = {w + 2 * c * GROUPS * GROUP_BYTES, w + last * GROUPS * GROUP_BYTES};
    CAT(NAME, _unpack)(codes, both[0]);
    CAT(NAME, _unpack)(codes + K / 2, both[1]);
    f32x8 sums[TILE][2];
    long m = 0;
    for (; m + TILE <= rows; m += TILE) {
      CAT(NAME, _tile)(sums, x + m * ROW_BYTES, TILE, codes, both);
      for (int r = 0; r < TILE; r++)
        for (long b = 0; 2 * c + b <= last; b++) CAT(NAME, _store)(y, residual, sums[r][b], m + r, 8 * (2 * c + b));
    }
    for (; m < rows; m++) {
      CAT(NAME, _tile)(sums, x + m * ROW_BYTES, 1, codes, both);
      for (long b = 0; 2 * c + b <= last; b++) CAT(NAME, _store)(y, residual, sums[0][b], m, 8 * (2 * c + b));
    }
  }
}

void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  float *restrict y = a[0];
  const uint8_t *restrict x = a[1], *restrict w = a[2];
  const float *restrict residual = ADD ? a[3] : NULL;
  const long rows = M, blocks = (N + 7) / 8, share = BLOCKS * SHARE;
  (void)dims;
  if (rows > 1) {
    CAT(NAME, _many)(y, residual, x, w, rows, ctx);
    return;
  }
  for (long c; (c = egg_claim(ctx)) * share < blocks;)
    for (long n = c * share; n < (c + 1) * share && n < blocks; n += BLOCKS) {
      f32x8 sums[BLOCKS];
      const uint8_t *part[BLOCKS];
      for (int b = 0; b < BLOCKS; b++) part[b] = w + (n + b < blocks ? n + b : n) * GROUPS * GROUP_BYTES;
      CAT(NAME, _row)(sums, x, part);
      for (int b = 0; b < BLOCKS && n + b < blocks; b++) CAT(NAME, _store)(y, residual, sums[b], 0, 8 * (n + b));
    }
}
#undef GROUPS
#undef CODE_VECTORS
#undef GROUP_BYTES
#undef ROW_BYTES
