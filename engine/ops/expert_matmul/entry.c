
/* Each group's rows times its expert's blocks. Claims go through the groups in order. */
void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  const long pairs = M, blocks = N / 8 * STREAMS;
  const int32_t *restrict starts = (const int32_t *)a[2 + STREAMS] + 2 * pairs, *restrict experts = starts + pairs + 1;
  const long groups = experts[pairs];
  long group = 0, before = 0; /* claims that belong to the groups before this one */
  (void)dims;
  for (long c = egg_claim(ctx);; c = egg_claim(ctx)) {
    long rows = 0, share = 1, claims = 0;
    for (; group < groups; before += claims, group++) {
      rows = starts[group + 1] - starts[group];
      share = CAT(NAME, _share)(rows);
      claims = (blocks + share - 1) / share;
      if (c - before < claims) break;
    }
    if (group == groups) return;
    const long n = (c - before) * share, end = n + share < blocks ? n + share : blocks;
    const long expert = experts[group] < 0 ? 0 : experts[group] < EXPERTS ? experts[group] : EXPERTS - 1;
    void *own[2 + STREAMS];
    own[0] = (float *)a[0] + starts[group] * (long)N;
    own[1] = (char *)a[1] + starts[group] * (long)X_BYTES;
    for (int s = 0; s < STREAMS; s++) own[2 + s] = (char *)a[2 + s] + expert * (N / 8) * (long)BLOCK_BYTES;
    CAT(NAME, _product)(own, rows, n, end, ctx);
  }
}
