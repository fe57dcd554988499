/* Ragged paged attention: token j of request i attends to the keys at positions 0..positions[j] of its request.

   A claim is (request, KV head, GROUP of the query heads that share it, QUERIES query tokens): they are done together, so
   that a page of keys and values is converted to floats once for all of them. Softmax is computed online, a page at a time
   from position 0, so a row's bits depend neither on the batch nor on how its prompt was cut into chunks. */
#define SHARED (H / KVH)
#define SPLITS (SHARED / GROUP)
#define ROWS (QUERIES * GROUP)
#define WIDTH ((D + 7) / 8)

/* Scores of a query against 8 keys. */
static inline f32x8 CAT(NAME, _scores)(const f32x8 *restrict query, const f32x8 (*restrict keys)[WIDTH]) {
  f32x8 sums[8];
  EGG_UNROLL for (int j = 0; j < 8; j++) sums[j] = query[0] * keys[j][0];
  for (int d = 1; d < WIDTH; d++)
    EGG_UNROLL for (int j = 0; j < 8; j++) sums[j] = egg_fma(query[d], keys[j][d], sums[j]);
  return egg_sums_of_lanes(sums) * egg_spread(SCALE);
}

/* One query row against one page, of which it may see the first `visible` positions. */
static inline void CAT(NAME, _page)(
    f32x8 *restrict sums, float *restrict top, float *restrict total, const f32x8 *restrict query,
    const f32x8 (*restrict keys)[WIDTH], const f32x8 (*restrict values)[WIDTH], long visible) {
  union { f32x8 vectors[PAGE / 8]; float one[PAGE]; } p;
  for (int j = 0; j < PAGE / 8; j++) p.vectors[j] = CAT(NAME, _scores)(query, keys + 8 * j);
  for (long j = visible; j < PAGE; j++) p.one[j] = -INFINITY;
  float highest = *top;
  for (int j = 0; j < PAGE; j++) highest = p.one[j] > highest ? p.one[j] : highest;
  for (int j = 0; j < PAGE; j++) p.one[j] = egg_expf(p.one[j] - highest);
  const float rescale = highest == *top ? 1.0f : egg_expf(*top - highest);
  float weight = 0;
  for (int j = 0; j < PAGE; j++) weight += p.one[j];
  *top = highest;
  *total = *total * rescale + weight;
  for (int d = 0; d < WIDTH; d++) {
    f32x8 sum = sums[d] * egg_spread(rescale);
    EGG_UNROLL for (int j = 0; j < PAGE; j++) sum = egg_fma(egg_spread(p.one[j]), values[j][d], sum);
    sums[d] = sum;
  }
}

void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  float *restrict out = a[0];
  const float *restrict q = a[1];
  const uint16_t *restrict k_pool = a[2], *restrict v_pool = a[3];
  const int32_t *restrict table = a[4], *restrict query_start = a[5], *restrict positions = a[6];
  const long requests = R, pages = P;
  long blocks = 0;
  (void)dims;
  for (long i = 0; i < requests; i++) blocks += (query_start[i + 1] - query_start[i] + QUERIES - 1) / QUERIES;

  f32x8(*keys)[WIDTH] = ctx->scratch, (*values)[WIDTH] = keys + PAGE, (*queries)[WIDTH] = values + PAGE, (*sums)[WIDTH] = queries + ROWS;
  float *top = (float *)(sums + ROWS), *total = top + ROWS;

  for (long c; (c = egg_claim(ctx)) < blocks * KVH * SPLITS;) {
    const long split = c % SPLITS, head = c / SPLITS % KVH, h0 = head * SHARED + split * GROUP;
    long i = 0, block = c / SPLITS / KVH;
    for (long n; block >= (n = (query_start[i + 1] - query_start[i] + QUERIES - 1) / QUERIES); i++) block -= n;
    const long first = query_start[i] + block * QUERIES;
    const long last = first + QUERIES < query_start[i + 1] ? first + QUERIES : query_start[i + 1];
    for (long row = 0; row < (last - first) * GROUP; row++) {
      egg_pad_f32x8(queries[row], q + ((first + row / GROUP) * H + h0 + row % GROUP) * D, D);
      top[row] = -INFINITY;
      total[row] = 0;
      for (int d = 0; d < WIDTH; d++) sums[row][d] = (f32x8){0};
    }
    for (long page = 0; page * PAGE <= positions[last - 1]; page++) {
      const long at = ((long)table[i * pages + page] * PAGE * KVH + head) * D;
      const long next = ((long)table[i * pages + (page + 1 < pages ? page + 1 : page)] * PAGE * KVH + head) * D;
      for (long j = 0; j < PAGE; j++) {
        for (long d = 0; d < D; d += 32) { /* a cache line */
          __builtin_prefetch(k_pool + next + j * KVH * D + d);
          __builtin_prefetch(v_pool + next + j * KVH * D + d);
        }
        egg_pad_f16x8(keys[j], k_pool + at + j * KVH * D, D);
        egg_pad_f16x8(values[j], v_pool + at + j * KVH * D, D);
        if (page * PAGE + j > positions[last - 1]) /* not written yet: it may be NaN, which a weight of 0 does not undo */
          for (int d = 0; d < WIDTH; d++) values[j][d] = (f32x8){0};
      }
      for (long row = 0; row < (last - first) * GROUP; row++) {
        const long seen = positions[first + row / GROUP] - page * PAGE + 1, visible = seen < PAGE ? seen : PAGE;
        if (visible > 0)
          CAT(NAME, _page)(sums[row], top + row, total + row, queries[row], (const f32x8(*)[WIDTH])keys, (const f32x8(*)[WIDTH])values, visible);
      }
    }
    for (long row = 0; row < (last - first) * GROUP; row++) {
      float *restrict y = out + ((first + row / GROUP) * H + h0 + row % GROUP) * D;
      const float scale = 1.0f / total[row];
      for (long d = 0; d < D; d++) y[d] = ((const float *)sums[row])[d] * scale;
    }
  }
}
#undef SHARED
#undef SPLITS
#undef ROWS
#undef WIDTH
