/* Sums over k, in order, of rows of floats with packed float weights: one fma a column, the same for every tile. */
#if defined(HELD_F32)
#define COLUMNS 1
#define BLOCK_BYTES (32L * K)
#else
#define COLUMNS 2
#define BLOCK_BYTES (32L * ((K + 1) / 2))
#endif

/* Column e of step `at` (COLUMNS columns a step) of 8 rows. */
static inline f32x8 CAT(NAME, _column)(const uint8_t *restrict block, long at, int e) {
#if defined(HELD_F32)
  (void)e;
  return egg_load_f32x8(block + 32 * at);
#elif defined(HELD_BF16)
  return egg_half_bf16(block + 32 * at, e);
#else
  return egg_half_f16(block + 32 * at, e);
#endif
}

/* `rows` <= TILE rows times BLOCKS blocks of 8 outputs. */
static inline __attribute__((always_inline)) void CAT(NAME, _tile)(
    f32x8 (*restrict sums)[BLOCKS], const float *restrict x, int rows, const uint8_t *const *restrict blocks) {
  EGG_UNROLL for (int r = 0; r < rows; r++)
    EGG_UNROLL for (int b = 0; b < BLOCKS; b++) sums[r][b] = (f32x8){0};
  for (long at = 0; at < (K + COLUMNS - 1) / COLUMNS; at++)
    EGG_UNROLL for (int e = 0; e < COLUMNS; e++) {
      if (COLUMNS * at + e >= K) break;
      EGG_UNROLL for (int b = 0; b < BLOCKS; b++) {
        const f32x8 w = CAT(NAME, _column)(blocks[b], at, e);
        EGG_UNROLL for (int r = 0; r < rows; r++) sums[r][b] = egg_fma(w, egg_spread(x[r * K + COLUMNS * at + e]), sums[r][b]);
      }
    }
}
