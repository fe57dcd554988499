/* Products of quantised rows with packed weights (both formats are in quantized.h), for the kernels that end differently.

   A group's integer sum is exact; groups are added in order of k as fma(sum, scale_w * scale_x) and then fma(minimum,
   sum_x). So a row's bits depend on nothing but the row and the weights, whatever M, TILE, BLOCKS and the threads are. A
   16-bit lane holds PLACES codes. */

/* What differs: where the n-th block of 8 outputs lies, and what becomes of rows m.. times blocks n..; sums[row * width + block]. */
static inline const uint8_t *CAT(NAME, _block)(void *const *a, long n);
EGG_INLINE void CAT(NAME, _finish)(void *const *a, const f32x8 *sums, int rows, int width, long m, long n);

/* `rows` rows times `width` blocks. Codes come from the blocks, or unpacked from codes[block][k / 2] if that is not NULL.
   Memory is asked for what lies `ahead` bytes further in each block, or after its end in the next one. */
EGG_INLINE void CAT(NAME, _tile)(
    f32x8 *restrict sums, const uint8_t *restrict x, int rows, const uint8_t *const *restrict blocks, int width, const i16x16 *restrict codes,
    const uint8_t *const *restrict next, long ahead) {
  EGG_UNROLL for (int i = 0; i < rows * width; i++) sums[i] = (f32x8){0};
  for (long g = 0; g < GROUPS; g++) {
    i32x8 products[16];
    if (next) EGG_UNROLL for (int b = 0; b < width; b++) {
      const long at = g * GROUP_BYTES + ahead;
      const uint8_t *from = at < BLOCK_BYTES ? blocks[b] + at : next[b] + at - BLOCK_BYTES;
      if (rows > 1) egg_prefetch(from, GROUP_BYTES, 3);
      else egg_prefetch(from, GROUP_BYTES, 2);
    }
    EGG_UNROLL for (int i = 0; i < rows * width; i++) products[i] = (i32x8){0};
    for (int v = 0; v < G / 2 / PLACES; v++)
      EGG_UNROLL for (int j = 0; j < PLACES; j++) {
        const long pair = g * (G / 2) + v * PLACES + j;
        i16x16 w[8];
        EGG_UNROLL for (int b = 0; b < width; b++)
          w[b] = codes ? codes[b * (K / 2) + pair] : egg_codes(egg_load_i16x16(blocks[b] + g * GROUP_BYTES + 32 * v), BITS, j);
        EGG_UNROLL for (int r = 0; r < rows; r++) {
          const i16x16 both = egg_spread_pair((const int16_t *)(x + r * ROW_BYTES) + 2 * pair);
          EGG_UNROLL for (int b = 0; b < width; b++)
            products[r * width + b] = egg_dot(products[r * width + b], w[b], both);
        }
      }
    EGG_UNROLL for (int b = 0; b < width; b++) {
      const uint8_t *restrict numbers = blocks[b] + g * GROUP_BYTES + G * BITS;
      const f32x8 scale = egg_load_scales(numbers, SCALE_BITS);
#if HAS_MIN
      const f32x8 minimum = egg_load_scales(numbers + SCALE_BITS, SCALE_BITS);
#endif
      EGG_UNROLL for (int r = 0; r < rows; r++) {
        const float *restrict scales = (const float *)(x + r * ROW_BYTES + 2 * K);
        const f32x8 product = __builtin_convertvector(products[r * width + b], f32x8);
        f32x8 sum = egg_fma(product, scale * egg_spread(scales[g]), sums[r * width + b]);
#if HAS_MIN
        sum = egg_fma(minimum, egg_spread(scales[GROUPS + g]), sum);
#endif
        sums[r * width + b] = sum;
      }
    }
  }
}

EGG_INLINE void CAT(NAME, _rows)(
    void *const *a, int rows, const uint8_t *const *restrict blocks, int width, const i16x16 *restrict codes,
    const uint8_t *const *restrict next, long ahead, long m, long n) {
  f32x8 sums[16];
  CAT(NAME, _tile)(sums, (const uint8_t *)a[1] + m * ROW_BYTES, rows, blocks, width, codes, next, ahead);
  CAT(NAME, _finish)(a, sums, rows, width, m, n);
}

/* All rows times the two blocks from n, in tiles. The first tile asks for the next two blocks. */
EGG_INLINE void CAT(NAME, _pair)(void *const *a, long rows, const i16x16 *restrict codes, long n, long blocks) {
  const uint8_t *const both[2] = {CAT(NAME, _block)(a, n), CAT(NAME, _block)(a, n + 1 < blocks ? n + 1 : n)};
  const uint8_t *const after[2] = {CAT(NAME, _block)(a, n + 2), CAT(NAME, _block)(a, n + 3)}, *const *next = codes ? NULL : after;
  long m = 0;
#define TILES(count, bound) \
  for (; m + count <= bound; m += count, next = NULL) CAT(NAME, _rows)(a, count, both, 2, codes, next, BLOCK_BYTES, m, n)
  TILES(TILE, rows);
  TILES(TILE / 2, rows);
  if (TILE > 4) TILES(2, rows);
  TILES(1, rows);
#undef TILES
}

/* The codes of one block as vectors of 16-bit numbers, in order of k. */
static inline void CAT(NAME, _unpack)(i16x16 *restrict codes, const uint8_t *restrict block) {
  for (long g = 0; g < GROUPS; g++)
    for (int v = 0; v < G / 2 / PLACES; v++)
      EGG_UNROLL for (int j = 0; j < PLACES; j++)
        *codes++ = egg_codes(egg_load_i16x16(block + g * GROUP_BYTES + 32 * v), BITS, j);
}

/* Blocks that one claim takes: a single row reads BLOCKS streams at a time; a few rows read two; for more, two blocks are
   unpacked once to codes that all tiles read. */
static inline long CAT(NAME, _share)(long rows) { return rows > 64 ? 2 : BLOCKS * SHARE; }

/* All rows times the blocks n..end. */
static inline void CAT(NAME, _product)(void *const *a, long rows, long n, long end, egg_ctx *ctx) {
  if (rows > 64) {
    i16x16 *restrict codes = ctx->scratch;
    CAT(NAME, _unpack)(codes, CAT(NAME, _block)(a, n));
    CAT(NAME, _unpack)(codes + K / 2, CAT(NAME, _block)(a, n + 1 < end ? n + 1 : n));
    CAT(NAME, _pair)(a, rows, codes, n, end);
    return;
  }
  if (rows > 1) {
    for (; n < end; n += 2) CAT(NAME, _pair)(a, rows, NULL, n, end);
    return;
  }
  for (; n < end; n += BLOCKS) {
    const uint8_t *streams[BLOCKS], *next[BLOCKS];
    for (int b = 0; b < BLOCKS; b++) {
      streams[b] = CAT(NAME, _block)(a, n + b < end ? n + b : n);
      next[b] = CAT(NAME, _block)(a, n + b + BLOCKS);
    }
    CAT(NAME, _rows)(a, 1, streams, BLOCKS, NULL, next, EGG_AHEAD < BLOCK_BYTES ? EGG_AHEAD : BLOCK_BYTES, 0, n);
  }
}
