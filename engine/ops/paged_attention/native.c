/* Ragged paged attention: token j of request i attends to the keys at positions 0..positions[j] of its request.

   A claim is (request, KV head, block of query tokens): the query heads that share a KV head are done together, so that
   a page of keys and values is converted to floats once for all of them. Softmax is computed online over pages from
   position 0, so a row's bits depend neither on the batch nor on how its prompt was cut into chunks. */
#define SHARED (H / KVH)
#define ROWS (QUERIES * SHARED)

void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  float *restrict out = a[0];
  const float *restrict q = a[1];
  const uint16_t *restrict k_pool = a[2], *restrict v_pool = a[3];
  const int32_t *restrict table = a[4], *restrict query_start = a[5], *restrict positions = a[6];
  const long requests = R, pages = P;
  long blocks = 0;
  (void)dims;
  for (long i = 0; i < requests; i++) blocks += (query_start[i + 1] - query_start[i] + QUERIES - 1) / QUERIES;

  float (*keys)[D] = ctx->scratch, (*values)[D] = keys + PAGE, (*sums)[D] = values + PAGE;
  float (*scores)[PAGE] = (float (*)[PAGE])(sums + ROWS), *top = (float *)(scores + ROWS), *total = top + ROWS;

  for (long c; (c = egg_claim(ctx)) < blocks * KVH;) {
    const long head = c % KVH;
    long i = 0, block = c / KVH;
    for (long n; block >= (n = (query_start[i + 1] - query_start[i] + QUERIES - 1) / QUERIES); i++) block -= n;
    const long first = query_start[i] + block * QUERIES;
    const long last = first + QUERIES < query_start[i + 1] ? first + QUERIES : query_start[i + 1];
    for (long row = 0; row < (last - first) * SHARED; row++) {
      top[row] = -INFINITY;
      total[row] = 0;
      for (long d = 0; d < D; d++) sums[row][d] = 0;
    }
    for (long page = 0; page * PAGE <= positions[last - 1]; page++) {
      const long at = ((long)table[i * pages + page] * PAGE * KVH + head) * D;
      for (long j = 0; j < PAGE; j++) {
        egg_f16_to_f32(keys[j], k_pool + at + j * KVH * D, D);
        egg_f16_to_f32(values[j], v_pool + at + j * KVH * D, D);
      }
      for (long t = first; t < last; t++) {
        const long visible = positions[t] - page * PAGE + 1;
        if (visible <= 0) continue;
        for (long s = 0; s < SHARED; s++) {
          const long row = (t - first) * SHARED + s;
          const float *restrict query = q + (t * H + head * SHARED + s) * D;
          float *restrict p = scores[row];
          float highest = top[row];
          for (long j = 0; j < PAGE; j++) {
            const float score = j < visible ? egg_dot(query, keys[j], D) * SCALE : -INFINITY;
            p[j] = score;
            highest = score > highest ? score : highest;
          }
          const float rescale = egg_expf(top[row] - highest);
          float weight = 0;
          for (long j = 0; j < PAGE; j++) p[j] = egg_expf(p[j] - highest);
          for (long j = 0; j < PAGE; j++) weight += p[j];
          top[row] = highest;
          total[row] = total[row] * rescale + weight;
          for (long d = 0; d < D; d++) sums[row][d] *= rescale;
          for (long j = 0; j < PAGE; j++)
            for (long d = 0; d < D; d++) sums[row][d] += p[j] * values[j][d];
        }
      }
    }
    for (long t = first; t < last; t++)
      for (long s = 0; s < SHARED; s++) {
        const long row = (t - first) * SHARED + s;
        const float scale = 1.0f / total[row];
        for (long d = 0; d < D; d++) out[(t * H + head * SHARED + s) * D + d] = sums[row][d] * scale;
      }
  }
}
#undef SHARED
#undef ROWS
