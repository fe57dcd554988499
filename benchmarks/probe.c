/* What this machine can do: a read loop over memory and a register-only loop of 16-bit multiply-adds. */

/* Every 64 bytes of SIZE are read once, in four streams a claim. */
void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  int32_t *restrict out = a[0];
  const long chunk = 1L << 18, stream = chunk / 4;
  i32x8 sums[4] = {{0}};
  (void)dims;
#if defined(MADDS)
  i32x8 held[12] = {{0}};
  const i16x16 x = egg_load_i16x16(a[1]);
  for (long c; (c = egg_claim(ctx)) < SIZE;)
    for (long n = 0; n < MADDS / 12; n++)
      EGG_UNROLL for (int r = 0; r < 12; r++) {
        held[r] = egg_dot(held[r], x, (i16x16)held[r]);
        __asm__ volatile("" : "+x"(held[r]));
      }
  EGG_UNROLL for (int r = 0; r < 12; r++) sums[r & 3] += held[r];
#else
  for (long c; (c = egg_claim(ctx)) * chunk < SIZE;) {
    const uint8_t *restrict p = (const uint8_t *)a[1] + c * chunk;
    for (long at = 0; at < stream; at += 64)
      EGG_UNROLL for (int s = 0; s < 4; s++)
        sums[s] += (i32x8)egg_load_i16x16(p + s * stream + at) + (i32x8)egg_load_i16x16(p + s * stream + at + 32);
  }
#endif
  const i32x8 total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  memcpy(out + 8 * ctx->thread, &total, sizeof total);
}
