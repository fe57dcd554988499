/* y[t] = row rows[t] of packed weights; a row outside the table reads its nearest one. */
void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  float *restrict y = a[0];
  const int32_t *restrict rows = a[1];
  const long count = T;
  (void)dims;
  for (long t; (t = egg_claim(ctx)) < count;) {
    const long row = rows[t] < 0 ? 0 : rows[t] < N ? rows[t] : N - 1, block = row / 8, lane = row % 8;
    for (long k = 0; k < K; k++) {
#if defined(HELD_BF16)
      y[t * K + k] = egg_bf16_to_f32(((const uint16_t *)a[2])[((block * ((K + 1) / 2) + k / 2) * 8 + lane) * 2 + k % 2]);
#elif defined(HELD_F16)
      y[t * K + k] = egg_f16_to_f32(((const uint16_t *)a[2])[(block * K + k) * 8 + lane]);
#else
      y[t * K + k] = ((const float *)a[2])[(block * K + k) * 8 + lane];
#endif
    }
  }
}
