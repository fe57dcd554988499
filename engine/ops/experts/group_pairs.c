/* From the pairs' order by expert: the order, each pair's place in it, where each expert's pairs begin, the experts, and
   how many of them there are. */
void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  const long pairs = PAIRS;
  const int32_t *restrict order = a[1], *restrict experts = a[2];
  int32_t *restrict out = a[0], *place = out + pairs, *starts = place + pairs, *found = starts + pairs + 1;
  (void)dims;
  if (egg_claim(ctx)) return;
  memset(starts, 0, (size_t)(2 * pairs + 1) * sizeof *out);
  int32_t count = 0;
  for (long at = 0; at < pairs; at++) {
    const int32_t pair = order[at], expert = experts[pair];
    out[at] = pair;
    place[pair] = (int32_t)at;
    if (at == 0 || expert != found[count - 1]) starts[count] = (int32_t)at, found[count++] = expert;
  }
  starts[count] = (int32_t)pairs;
  found[pairs] = count;
}
