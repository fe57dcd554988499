/* The row of each pair's token, in the order of the groups; SHARED pairs a token. */
void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  const long pairs = PAIRS;
  const int32_t *restrict order = a[2];
  (void)dims;
  for (long at; (at = egg_claim(ctx)) < pairs;)
    memcpy((char *)a[0] + at * (ROW_BYTES), (const char *)a[1] + order[at] / (SHARED) * (ROW_BYTES), ROW_BYTES);
}
