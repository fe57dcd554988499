/* Ragged paged attention: token j of request i attends to the keys at positions 0..positions[j] of its request, or, if it is
   not CAUSAL, to all up to the position of the request's last token.

   A claim is (request, HEADS KV heads, GROUP of the query heads that share each, QUERIES query tokens): rows that share a KV
   head are done together, so that a page's keys and values are read once for all of them. A single token reads them from
   the page, more from a copy in floats. Softmax is computed online, a page at a time in order of position, so a row's bits
   depend neither on the batch nor on how its prompt was cut into chunks. A WINDOW or CAP of 0 is none. */
#define SHARED (H / KVH)
#define SPLITS (SHARED / GROUP)
#define ROWS (QUERIES * GROUP + TILE - 1)
#define WIDTH ((D + 7) / 8)
#define TILE 4                            /* rows at a time, of several tokens; */
#define SOLO (GROUP < TILE ? GROUP : TILE) /* of one */

/* Vector d of a key or value: of a page's f16, or of its copy in floats if that is not NULL. */
EGG_INLINE f32x8 CAT(NAME, _vector)(const uint16_t *page, const f32x8 (*copy)[WIDTH], long j, int d) {
  return copy ? copy[j][d] : egg_load_f16x8(page + j * KVH * D + 8 * d);
}

/* scores[row * PAGE + j] of `rows` queries and the keys of a page. */
EGG_INLINE void CAT(NAME, _scores)(
    float *restrict scores, int rows, const f32x8 (*restrict queries)[WIDTH], const uint16_t *page, const f32x8 (*copy)[WIDTH]) {
  for (int j = 0; j < PAGE; j += 8) {
    f32x8 lanes[TILE][8];
    for (int i = 0; i < 8; i += 2) {
      f32x8 sums[TILE][2];
      EGG_UNROLL for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = (f32x8){0};
      for (int d = 0; d < WIDTH; d++) {
        const f32x8 one = CAT(NAME, _vector)(page, copy, j + i, d), two = CAT(NAME, _vector)(page, copy, j + i + 1, d);
        EGG_UNROLL for (int r = 0; r < rows; r++) {
          sums[r][0] = egg_fma(queries[r][d], one, sums[r][0]);
          sums[r][1] = egg_fma(queries[r][d], two, sums[r][1]);
        }
      }
      EGG_UNROLL for (int r = 0; r < rows; r++) lanes[r][i] = sums[r][0], lanes[r][i + 1] = sums[r][1];
    }
    EGG_UNROLL for (int r = 0; r < rows; r++) egg_store_f32x8(scores + r * PAGE + j, egg_sums_of_lanes(lanes[r]) * egg_spread(SCALE));
  }
}

/* Vectors d.. of the rows' sums, times what their old maximum counts for, plus the weighted values of a page. */
EGG_INLINE void CAT(NAME, _values)(
    f32x8 (*restrict sums)[WIDTH], int rows, const float *rescale, const float *weights, long count,
    const uint16_t *page, const f32x8 (*copy)[WIDTH], int d, int width) {
  f32x8 held[TILE][2];
  EGG_UNROLL for (int r = 0; r < rows; r++)
    EGG_UNROLL for (int i = 0; i < width; i++) held[r][i] = sums[r][d + i] * egg_spread(rescale[r]);
  for (long j = 0; j < count; j++) {
    f32x8 value[2];
    EGG_UNROLL for (int i = 0; i < width; i++) value[i] = CAT(NAME, _vector)(page, copy, j, d + i);
    EGG_UNROLL for (int r = 0; r < rows; r++)
      EGG_UNROLL for (int i = 0; i < width; i++) held[r][i] = egg_fma(egg_spread(weights[r * PAGE + j]), value[i], held[r][i]);
  }
  EGG_UNROLL for (int r = 0; r < rows; r++)
    EGG_UNROLL for (int i = 0; i < width; i++) sums[r][d + i] = held[r][i];
}

/* `rows` rows against a page, of which row r sees positions hidden[r]..visible[r]; the first `count` are written. */
EGG_INLINE void CAT(NAME, _page)(
    f32x8 (*restrict sums)[WIDTH], float *restrict top, float *restrict total, int rows, const f32x8 (*restrict queries)[WIDTH],
    const uint16_t *k_page, const uint16_t *v_page, const f32x8 (*keys)[WIDTH], const f32x8 (*values)[WIDTH], const long *hidden, const long *visible, long count) {
  float weights[TILE * PAGE] __attribute__((aligned(32))), before[TILE] = {0}, highest[TILE] = {0}, rescale[TILE];
  CAT(NAME, _scores)(weights, rows, queries, k_page, keys);
  for (int r = 0; r < rows; r++) {
    float *restrict p = weights + r * PAGE;
    if (CAP > 0)
      for (int j = 0; j < PAGE; j++) p[j] = (egg_sigmoid(p[j] * (2.0f / CAP)) * 2.0f - 1.0f) * CAP;
    for (long j = visible[r]; j < PAGE; j++) p[j] = -INFINITY;
    for (long j = 0; WINDOW && j < hidden[r]; j++) p[j] = -INFINITY;
    f32x8 high = egg_load_f32x8(p);
    for (int j = 8; j < PAGE; j += 8) high = egg_larger(high, egg_load_f32x8(p + j));
    const float most = egg_largest_lane(high);
    before[r] = top[r];
    highest[r] = top[r] = most > before[r] ? most : before[r];
    if (WINDOW && highest[r] == -INFINITY) highest[r] = 0; /* a row that has seen nothing yet */
  }
  for (int r = 0; r < TILE; r++) rescale[r] = egg_expf(before[r] - highest[r]);
  for (int r = 0; r < rows; r++) {
    float *restrict p = weights + r * PAGE;
    f32x8 weight = {0};
    for (int j = 0; j < PAGE; j += 8) {
      for (int l = 0; l < 8; l++) p[j + l] = egg_expf(p[j + l] - highest[r]);
      weight += egg_load_f32x8(p + j);
    }
    total[r] = total[r] * rescale[r] + egg_sum_of_lanes(weight);
  }
  int d = 0;
  for (; d + 2 <= WIDTH; d += 2) CAT(NAME, _values)(sums, rows, rescale, weights, count, v_page, values, d, 2);
  if (d < WIDTH) CAT(NAME, _values)(sums, rows, rescale, weights, count, v_page, values, d, 1);
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

  f32x8(*keys)[WIDTH] = ctx->scratch, (*values)[WIDTH] = keys + PAGE, (*queries)[WIDTH] = values + PAGE, (*sums)[WIDTH] = queries + HEADS * ROWS;
  float *top = (float *)(sums + HEADS * ROWS), *total = top + HEADS * ROWS;

  for (long c; (c = egg_claim(ctx)) < blocks * (KVH / HEADS) * SPLITS;) {
    const long split = c % SPLITS, head0 = c / SPLITS % (KVH / HEADS) * HEADS;
    long i = 0, block = c / SPLITS / (KVH / HEADS);
    for (long n; block >= (n = (query_start[i + 1] - query_start[i] + QUERIES - 1) / QUERIES); i++) block -= n;
    const long first = query_start[i] + block * QUERIES;
    const long last = first + QUERIES < query_start[i + 1] ? first + QUERIES : query_start[i + 1];
    const long newest = positions[(CAUSAL ? last : query_start[i + 1]) - 1], written = newest + 1;
    const long rows = (last - first) * GROUP;
    /* A copy pays off where several tiles read it, and pads keys that are no whole vectors. */
    const int solo = last - first == 1 && D % 8 == 0;
    for (long h = 0; h < HEADS; h++)
      for (long n = 0; n < rows + TILE - 1; n++) { /* the last tile may be filled up with rows that nobody wants */
        const long row = h * ROWS + n, token = first + n / GROUP, head = (head0 + h) * SHARED + split * GROUP + n % GROUP;
        top[row] = -INFINITY;
        total[row] = 0;
        for (int d = 0; d < WIDTH; d++) queries[row][d] = sums[row][d] = (f32x8){0};
        if (n < rows) egg_pad_f32x8(queries[row], q + (token * H + head) * D, D);
      }
    const long oldest = WINDOW && positions[first] >= WINDOW ? positions[first] - WINDOW + 1 : 0;
    for (long page = oldest / PAGE; page * PAGE < written; page++) {
      const long next = ((long)table[i * pages + (page + 1 < pages ? page + 1 : page)] * PAGE * KVH + head0) * D;
      const long count = written - page * PAGE < PAGE ? written - page * PAGE : PAGE;
      for (long h = 0; h < HEADS; h++) {
        const long at = ((long)table[i * pages + page] * PAGE * KVH + head0 + h) * D;
        const uint16_t *k_page = k_pool + at, *v_page = v_pool + at;
        for (long j = h * PAGE / HEADS; j < (h + 1) * PAGE / HEADS; j++) {
          egg_prefetch(k_pool + next + j * KVH * D, 2 * HEADS * D, 2);
          egg_prefetch(v_pool + next + j * KVH * D, 2 * HEADS * D, 2);
        }
        for (long j = 0; j < (solo ? 0 : PAGE); j++) {
          egg_pad_f16x8(keys[j], k_page + j * KVH * D, D);
          egg_pad_f16x8(values[j], v_page + j * KVH * D, D);
        }
        for (long tile = 0; tile < rows; tile += solo ? SOLO : TILE) {
          const long row = h * ROWS + tile;
          long hidden[TILE], visible[TILE];
          for (int r = 0; r < TILE; r++) {
            const long token = first + (tile + r < rows ? tile + r : rows - 1) / GROUP;
            const long seen = (CAUSAL ? positions[token] : newest) - page * PAGE + 1;
            visible[r] = seen < 0 ? 0 : seen < PAGE ? seen : PAGE;
            hidden[r] = seen - WINDOW < PAGE ? seen - WINDOW : PAGE;
          }
          if (solo)
            CAT(NAME, _page)(sums + row, top + row, total + row, SOLO, queries + row, k_page, v_page, NULL, NULL, hidden, visible, count);
          else if (visible[TILE - 1])
            CAT(NAME, _page)(sums + row, top + row, total + row, TILE, queries + row, NULL, NULL, keys, values, hidden, visible, count);
        }
      }
    }
    for (long h = 0; h < HEADS; h++)
      for (long row = 0; row < rows; row++) {
        float *restrict y = out + ((first + row / GROUP) * H + (head0 + h) * SHARED + split * GROUP + row % GROUP) * D;
        const float scale = 1.0f / total[h * ROWS + row];
        for (long d = 0; d < D; d++) y[d] = ((const float *)sums[h * ROWS + row])[d] * scale;
      }
  }
}
#undef SHARED
#undef SPLITS
#undef ROWS
#undef WIDTH
#undef TILE
#undef SOLO
