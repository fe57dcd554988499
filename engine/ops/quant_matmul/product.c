/* Sums of products of quantised rows with packed weights (both formats are in prelude.h), for the kernels that use them.

   A group's integer sum is exact; groups are added in order of k as fma(sum, scale_w * scale_x) and then fma(minimum,
   sum_x). So a row's bits depend on nothing but the row and the weights, whatever M, TILE, BLOCKS and the threads are. */
#define GROUPS (K / G)
#define CODE_VECTORS (G * BITS / 32)
#define GROUP_BYTES EGG_GROUP_BYTES(G, BITS, SCALE_BITS, HAS_MIN)
#define ROW_BYTES EGG_ROW_BYTES(K, G)

static inline f32x8 CAT(NAME, _add)(f32x8 sum, i32x8 product, const uint8_t *restrict group, const uint8_t *restrict row, long g) {
  const float *restrict scales = (const float *)(row + 2 * K);
  const uint8_t *restrict numbers = group + G * BITS;
  const f32x8 scale = egg_load_scales(numbers, SCALE_BITS) * egg_spread(scales[g]);
  sum = egg_fma(__builtin_convertvector(product, f32x8), scale, sum);
#if HAS_MIN
  sum = egg_fma(egg_load_scales(numbers + SCALE_BITS, SCALE_BITS), egg_spread(scales[GROUPS + g]), sum);
#endif
  return sum;
}

/* One row times BLOCKS blocks of 8 outputs. */
static inline void CAT(NAME, _row)(f32x8 *restrict sums, const uint8_t *restrict row, const uint8_t *const *restrict blocks) {
  EGG_UNROLL for (int b = 0; b < BLOCKS; b++) sums[b] = (f32x8){0};
  for (long g = 0; g < GROUPS; g++) {
    const int16_t *restrict x = (const int16_t *)row + g * G;
    i32x8 product[BLOCKS];
    EGG_UNROLL for (int b = 0; b < BLOCKS; b++) product[b] = (i32x8){0};
    EGG_UNROLL for (int v = 0; v < CODE_VECTORS; v++)
      EGG_UNROLL for (int j = 0; j < 16 / BITS; j++) {
        const i16x16 pair = egg_spread_pair(x + (v * (16 / BITS) + j) * 2);
        EGG_UNROLL for (int b = 0; b < BLOCKS; b++)
          product[b] += egg_madd(egg_codes(egg_load_i16x16(blocks[b] + g * GROUP_BYTES + 32 * v), BITS, j), pair);
      }
    EGG_UNROLL for (int b = 0; b < BLOCKS; b++) sums[b] = CAT(NAME, _add)(sums[b], product[b], blocks[b] + g * GROUP_BYTES, row, g);
  }
}

/* `rows` <= TILE rows times two blocks whose codes are unpacked to codes[block][k / 2]. */
static inline __attribute__((always_inline)) void CAT(NAME, _tile)(
    f32x8 (*restrict sums)[2], const uint8_t *restrict first, int rows, const i16x16 *restrict codes, const uint8_t *const *restrict blocks) {
  EGG_UNROLL for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = (f32x8){0};
  for (long g = 0; g < GROUPS; g++) {
    i32x8 product[TILE][2];
    EGG_UNROLL for (int r = 0; r < rows; r++) product[r][0] = product[r][1] = (i32x8){0};
    for (int pair = 0; pair < G / 2; pair++) {
      const i16x16 w0 = codes[g * (G / 2) + pair], w1 = codes[K / 2 + g * (G / 2) + pair];
      EGG_UNROLL for (int r = 0; r < rows; r++) {
        const i16x16 x = egg_spread_pair((const int16_t *)(first + r * ROW_BYTES) + g * G + 2 * pair);
        product[r][0] += egg_madd(w0, x);
        product[r][1] += egg_madd(w1, x);
      }
    }
    EGG_UNROLL for (int r = 0; r < rows; r++)
      EGG_UNROLL for (int b = 0; b < 2; b++)
        sums[r][b] = CAT(NAME, _add)(sums[r][b], product[r][b], blocks[b] + g * GROUP_BYTES, first + r * ROW_BYTES, g);
  }
}

/* The codes of one block as vectors of 16-bit numbers, in order of k. */
static inline void CAT(NAME, _unpack)(i16x16 *restrict codes, const uint8_t *restrict block) {
  for (long g = 0; g < GROUPS; g++)
    EGG_UNROLL for (int v = 0; v < CODE_VECTORS; v++) {
      const i16x16 packed = egg_load_i16x16(block + g * GROUP_BYTES + 32 * v);
      EGG_UNROLL for (int j = 0; j < 16 / BITS; j++) *codes++ = egg_codes(packed, BITS, j);
    }
}
