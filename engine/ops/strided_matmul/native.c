/* y[.., m, .., n, ..] = sum over k of a[.., m, .., k] * b[.., n, .., k], in places that the strides say.

   A claim is a block of COLUMNS columns at one place of the outer axes. Its part of b is copied into rows of k, then each
   TILE rows of a: what the inner loop reads lies dense, however the operands do. An element's terms are added in order of
   k in pieces of DEPTH, and the pieces in order, so its bits do not depend on the sizes beside it. */
#define TILE 4
#define COLUMNS 64
#define DEPTH 1024

/* TILE rows times 16 columns, over n terms. */
static inline void CAT(NAME, _tile)(f32x8 *restrict sums, const float *restrict a, const float *restrict b, long n) {
  f32x8 held[TILE][2] = {{{0}}};
  for (long k = 0; k < n; k++) {
    const f32x8 b0 = egg_load_f32x8(b + k * COLUMNS), b1 = egg_load_f32x8(b + k * COLUMNS + 8);
    EGG_UNROLL for (int r = 0; r < TILE; r++) {
      const f32x8 one = egg_spread(a[k * TILE + r]);
      held[r][0] = egg_fma(one, b0, held[r][0]);
      held[r][1] = egg_fma(one, b1, held[r][1]);
    }
  }
  EGG_UNROLL for (int r = 0; r < TILE; r++) sums[2 * r] = held[r][0], sums[2 * r + 1] = held[r][1];
}

/* One row times COLUMNS columns that lie side by side, over n terms from k0 on. */
static inline void CAT(NAME, _row)(
    float *restrict y, const float *restrict a, const float *restrict b, long k0, long n, const long *dims) {
  (void)dims;
  f32x8 held[COLUMNS / 8] = {{0}};
  for (long k = k0; k < k0 + n; k++) {
    const f32x8 one = egg_spread(a[A_K((k))]);
    const float *restrict from = b + (B_K((k)));
    EGG_UNROLL for (int j = 0; j < COLUMNS / 8; j++) held[j] = egg_fma(one, egg_load_f32x8(from + 8 * j), held[j]);
  }
  for (int j = 0; j < COLUMNS; j++) y[j * (Y_COLUMN)] = (k0 ? y[j * (Y_COLUMN)] : 0) + ((const float *)held)[j];
}

void NAME(void *const *args, const long *dims, egg_ctx *ctx) {
  float *restrict y = args[0];
  const float *restrict a = args[1], *restrict b = args[2];
  const long rows = M, columns = N, depth = K, blocks = (columns + COLUMNS - 1) / COLUMNS, work = (OUTER) * blocks;
  float *restrict b_block = ctx->scratch, *restrict a_block = b_block + DEPTH * COLUMNS;
  (void)dims;
  for (long c; (c = egg_claim(ctx)) < work;) {
    const long row = c / blocks, n0 = c % blocks * COLUMNS, width = columns - n0 < COLUMNS ? columns - n0 : COLUMNS;
    UNRAVEL
    const float *restrict a0 = a + (A_START), *restrict b0 = b + (B_START) + n0 * (B_COLUMN);
    float *restrict y0 = y + (Y_START) + n0 * (Y_COLUMN);
    if (depth == 0)
      for (long m = 0; m < rows; m++)
        for (long n = 0; n < width; n++) y0[m * (Y_ROW) + n * (Y_COLUMN)] = 0;
    for (long k0 = 0; k0 < depth; k0 += DEPTH) {
      const long terms = depth - k0 < DEPTH ? depth - k0 : DEPTH;
      if (rows == 1 && (B_COLUMN) == 1 && width == COLUMNS) {
        CAT(NAME, _row)(y0, a0, b0, k0, terms, dims);
        continue;
      }
      for (long k = 0; k < terms; k++) {
        const float *restrict from = b0 + (B_K((k0 + k)));
        for (long n = 0; n < width; n++) b_block[k * COLUMNS + n] = from[n * (B_COLUMN)];
        for (long n = width; n < COLUMNS; n++) b_block[k * COLUMNS + n] = 0;
      }
      for (long m0 = 0; m0 < rows; m0 += TILE) {
        const long height = rows - m0 < TILE ? rows - m0 : TILE;
        for (long k = 0; k < terms; k++) {
          const float *restrict from = a0 + (A_K((k0 + k))) + m0 * (A_ROW);
          for (long r = 0; r < TILE; r++) a_block[k * TILE + r] = r < height ? from[r * (A_ROW)] : 0;
        }
        for (long n = 0; n < width; n += 16) {
          union { f32x8 vectors[2 * TILE]; float one[16 * TILE]; } sums;
          CAT(NAME, _tile)(sums.vectors, a_block, b_block + n, terms);
          for (long r = 0; r < height; r++)
            for (long l = 0; l < 16 && n + l < width; l++) {
              float *restrict place = y0 + (m0 + r) * (Y_ROW) + (n + l) * (Y_COLUMN);
              *place = k0 ? *place + sums.one[16 * r + l] : sums.one[16 * r + l];
            }
        }
      }
    }
  }
}
#undef TILE
#undef COLUMNS
#undef DEPTH
