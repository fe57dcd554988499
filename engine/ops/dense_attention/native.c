/* Attention over tensors: y[t, :] = sum over s of softmax(SCALE * q[t, :] . k[s, :] + mask[t, s]) * v[s, :], at each place of
   the outer axes.

   A claim is QUERIES rows of one place. Keys and values are copied KEYS at a time, so that what the tiles read lies dense
   however the operands do; softmax is computed online, a block after another, so a row's bits do not depend on the others. */
#if defined(__AVX512VL__)
#define TILE 8 /* rows that the registers hold the sums of */
#else
#define TILE 4
#endif
#define KEYS 64
#define WIDTH ((DV + 15) / 16 * 16)

/* held[r][..] += sum over n terms of a[r * row + k] * b[k * stride ..], TILE rows times 16 columns. */
EGG_INLINE void CAT(NAME, _tile)(
    f32x8 (*restrict held)[2], const float *restrict a, long row, const float *restrict b, long stride, long n) {
  for (long k = 0; k < n; k++) {
    const f32x8 b0 = egg_load_f32x8(b + k * stride), b1 = egg_load_f32x8(b + k * stride + 8);
    EGG_UNROLL for (int r = 0; r < TILE; r++) {
      const f32x8 one = egg_spread(a[r * row + k]);
      held[r][0] = egg_fma(one, b0, held[r][0]);
      held[r][1] = egg_fma(one, b1, held[r][1]);
    }
  }
}

/* A row's scores to weights, of one more block of keys; returns the factor of what came before. */
static inline float CAT(NAME, _soften)(float *restrict p, float *restrict top, float *restrict total) {
  f32x8 high = egg_load_f32x8(p), sum = {0};
  for (int j = 8; j < KEYS; j += 8) high = egg_larger(high, egg_load_f32x8(p + j));
  const float most = egg_largest_lane(high), before = *top, higher = most > before ? most : before;
  const float shift = higher == -INFINITY ? 0 : higher; /* a row that has seen nothing yet */
  for (int j = 0; j < KEYS; j++) p[j] = egg_expf(p[j] - shift);
  for (int j = 0; j < KEYS; j += 8) sum += egg_load_f32x8(p + j);
  const float rescale = egg_expf(before - shift);
  *total = *total * rescale + egg_sum_of_lanes(sum);
  *top = higher;
  return rescale;
}

void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  float *restrict y = a[0];
  const float *restrict q = a[1], *restrict k = a[2], *restrict v = a[3];
  MASK_ARGUMENT
  const long rows = T, keys = S, blocks = (rows + QUERIES - 1) / QUERIES;
  float *restrict k_block = ctx->scratch, *restrict v_block = k_block + DK * KEYS, *restrict q_block = v_block + KEYS * WIDTH;
  float *restrict sums = q_block + QUERIES * DK, *restrict top = sums + QUERIES * WIDTH, *restrict total = top + QUERIES;
  (void)dims;
  for (long c; (c = egg_claim(ctx)) < (OUTER) * blocks;) {
    const long row = c / blocks, t0 = c % blocks * QUERIES, height = rows - t0 < QUERIES ? rows - t0 : QUERIES;
    UNRAVEL
    const float *restrict q0 = q + (Q_START) + t0 * (Q_ROW), *restrict k0 = k + (K_START), *restrict v0 = v + (V_START);
    float *restrict y0 = y + (Y_START) + t0 * DV;
    for (long t = 0; t < (height + TILE - 1) / TILE * TILE; t++) {
      for (long d = 0; d < DK; d++) q_block[t * DK + d] = t < height ? q0[t * (Q_ROW) + d * (Q_DEPTH)] : 0;
      top[t] = -INFINITY, total[t] = 0;
    }
    memset(sums, 0, sizeof(float) * QUERIES * WIDTH);
    for (long s0 = 0; s0 < keys; s0 += KEYS) {
      const long count = keys - s0 < KEYS ? keys - s0 : KEYS;
      for (long j = 0; j < KEYS; j++)
        for (long d = 0; d < DK; d++) k_block[d * KEYS + j] = j < count ? k0[(s0 + j) * (K_ROW) + d * (K_DEPTH)] : 0;
      for (long j = 0; j < count; j++)
        for (long d = 0; d < WIDTH; d++) v_block[j * WIDTH + d] = d < DV ? v0[(s0 + j) * (V_DEPTH) + d * (V_COLUMN)] : 0;
      for (long t = 0; t < height; t += TILE) {
        float scores[TILE][KEYS] __attribute__((aligned(64))), before[TILE];
        for (long j = 0; j < KEYS; j += 16) {
          f32x8 held[TILE][2] = {{{0}}};
          CAT(NAME, _tile)(held, q_block + t * DK, DK, k_block + j, KEYS, DK);
          EGG_UNROLL for (int r = 0; r < TILE; r++)
            EGG_UNROLL for (int i = 0; i < 2; i++) egg_store_f32x8(scores[r] + j + 8 * i, held[r][i] * egg_spread(SCALE));
        }
        for (long r = 0; r < TILE; r++) {
          const long at = t0 + (t + r < height ? t + r : t);
          for (long j = 0; j < count; j++) scores[r][j] += MASK(at, (s0 + j));
          for (long j = count; j < KEYS; j++) scores[r][j] = -INFINITY;
          (void)at;
          before[r] = CAT(NAME, _soften)(scores[r], top + t + r, total + t + r);
        }
        for (long d = 0; d < WIDTH; d += 16) {
          f32x8 held[TILE][2];
          float *restrict sum = sums + t * WIDTH + d;
          EGG_UNROLL for (int r = 0; r < TILE; r++)
            EGG_UNROLL for (int i = 0; i < 2; i++) held[r][i] = egg_load_f32x8(sum + r * WIDTH + 8 * i) * egg_spread(before[r]);
          CAT(NAME, _tile)(held, scores[0], KEYS, v_block + d, WIDTH, count);
          EGG_UNROLL for (int r = 0; r < TILE; r++)
            EGG_UNROLL for (int i = 0; i < 2; i++) egg_store_f32x8(sum + r * WIDTH + 8 * i, held[r][i]);
        }
      }
    }
    for (long t = 0; t < height; t++) {
      const float scale = 1.0f / total[t];
      for (long d = 0; d < DV; d++) y0[t * DV + d] = sums[t * WIDTH + d] * scale;
    }
  }
}
#undef TILE
#undef KEYS
#undef WIDTH
