/* Pair i of each head, (a, b) at FIRST(i) and SECOND(i), turned by its angle: (a cos - b sin, b cos + a sin). */
void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  float *restrict y = a[0];
  const float *restrict x = a[1], *restrict cosine = a[2], *restrict sine = a[3];
  const long rows = T;
  (void)dims;
  for (long c; (c = egg_claim(ctx)) * 8 < rows;)
    for (long t = c * 8; t < c * 8 + 8 && t < rows; t++)
      for (long h = 0; h < HEADS; h++) {
        const float *restrict p = x + t * ROW + h * 2 * HALF;
        float *restrict q = y + (t * HEADS + h) * 2 * HALF;
        for (long i = 0; i < HALF; i++) {
          const float co = cosine[t * HALF + i], si = sine[t * HALF + i];
          q[FIRST(i)] = p[FIRST(i)] * co + p[SECOND(i)] * -1.0f * si;
          q[SECOND(i)] = p[SECOND(i)] * co + p[FIRST(i)] * si;
        }
      }
}
