/* y[t] = row rows[t] of packed weights; a row outside the table reads its nearest one. */
void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  float *restrict y = a[0];
  const int32_t *restrict rows = a[1];
  const uint8_t *restrict w = a[2];
  const long count = T, groups = K / G, group_bytes = EGG_GROUP_BYTES(G, BITS, SCALE_BITS, HAS_MIN);
  (void)dims;
  for (long t; (t = egg_claim(ctx)) < count;) {
    const long row = rows[t] < 0 ? 0 : rows[t] < N ? rows[t] : N - 1, lane = row % 8;
    for (long g = 0; g < groups; g++) {
      const uint8_t *restrict group = w + (row / 8 * groups + g) * group_bytes, *restrict numbers = group + G * BITS;
      const float scale = egg_load_scales(numbers, SCALE_BITS)[lane];
      const float low = HAS_MIN ? egg_load_scales(numbers + SCALE_BITS, SCALE_BITS)[lane] : 0.0f;
      for (long pair = 0; pair < G / 2; pair++) {
        const long v = pair / (16 / BITS), j = pair % (16 / BITS);
        for (long e = 0; e < 2; e++) {
          uint16_t packed;
          memcpy(&packed, group + 32 * v + 2 * (2 * lane + e), sizeof packed);
          const int code = BITS == 4 ? packed >> (4 * j) & 15 : (int8_t)(packed >> (8 * j));
          y[t * K + g * G + 2 * pair + e] = (float)code * scale + low;
        }
      }
    }
  }
}
