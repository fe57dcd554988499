/* Products of rows of floats with packed float weights, for the kernels that end differently.

   Sums run over k in order, one fma a column: a row's bits depend on nothing but the row and the weights. A block's vector
   holds COLUMNS columns. */

/* What differs: where the n-th block of 8 outputs lies, and what becomes of rows m.. times blocks n..; sums[row * width + block]. */
static inline const uint8_t *CAT(NAME, _block)(void *const *a, long n);
EGG_INLINE void CAT(NAME, _finish)(void *const *a, const f32x8 *sums, int rows, int width, long m, long n);

/* Column k of the 8 rows of a block. */
EGG_INLINE f32x8 CAT(NAME, _column)(const uint8_t *restrict block, long k) {
#if defined(HELD_BF16)
  return egg_half_bf16(block + 32 * (k / 2), k % 2);
#elif defined(HELD_F16)
  return egg_load_f16x8(block + 16 * k);
#else
  return egg_load_f32x8(block + 32 * k);
#endif
}

EGG_INLINE void CAT(NAME, _step)(
    f32x8 *restrict sums, const float *restrict x, int rows, const uint8_t *const *restrict blocks, int width, long k) {
  f32x8 w[8];
  EGG_UNROLL for (int b = 0; b < width; b++) w[b] = CAT(NAME, _column)(blocks[b], k);
  EGG_UNROLL for (int r = 0; r < rows; r++) {
    const f32x8 one = egg_spread(x[r * K + k]);
    EGG_UNROLL for (int b = 0; b < width; b++) sums[r * width + b] = egg_fma(w[b], one, sums[r * width + b]);
  }
}

/* `rows` rows times `width` blocks. */
EGG_INLINE void CAT(NAME, _rows)(
    void *const *a, int rows, const uint8_t *const *restrict blocks, int width, long m, long n) {
  const float *restrict x = (const float *)a[1] + m * K;
  f32x8 sums[16];
  EGG_UNROLL for (int i = 0; i < rows * width; i++) sums[i] = (f32x8){0};
  long k = 0;
  for (; k + 4 <= K; k += 4) {
    EGG_UNROLL for (int b = 0; b < width; b++) egg_prefetch(blocks[b] + EGG_AHEAD + k / COLUMNS * (BLOCK_BYTES / ((K + COLUMNS - 1) / COLUMNS)), 64, 2);
    EGG_UNROLL for (int e = 0; e < 4; e++) CAT(NAME, _step)(sums, x, rows, blocks, width, k + e);
  }
  for (; k < K; k++) CAT(NAME, _step)(sums, x, rows, blocks, width, k);
  CAT(NAME, _finish)(a, sums, rows, width, m, n);
}

/* Blocks that one claim takes: a single row reads BLOCKS streams at a time, more rows go in tiles over two. */
static inline long CAT(NAME, _share)(long rows) {
  (void)rows;
  return BLOCKS * SHARE;
}

/* All rows times the blocks n..end. */
static inline void CAT(NAME, _product)(void *const *a, long rows, long n, long end, egg_ctx *ctx) {
  (void)ctx;
  const int width = rows > 1 ? 2 : BLOCKS;
  for (; n < end; n += width) {
    const uint8_t *streams[BLOCKS < 2 ? 2 : BLOCKS];
    for (int b = 0; b < width; b++) streams[b] = CAT(NAME, _block)(a, n + b < end ? n + b : n);
    if (rows == 1) {
      CAT(NAME, _rows)(a, 1, streams, BLOCKS, 0, n);
      continue;
    }
    long m = 0;
    for (; m + TILE <= rows; m += TILE) CAT(NAME, _rows)(a, TILE, streams, 2, m, n);
    for (; m + 2 <= rows; m += 2) CAT(NAME, _rows)(a, 2, streams, 2, m, n);
    if (m < rows) CAT(NAME, _rows)(a, 1, streams, 2, m, n);
  }
}
