/* y = the data, then y[indexes[n]] = source[n]. One claim does it all: later writes must win in order. */
void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  TYPE *restrict y = a[0];
  const TYPE *restrict data = a[1];
  const int32_t *restrict indexes = a[2];
  const TYPE *restrict source = a[3];
  const long size = SIZE, count = COUNT;
  (void)dims;
  if (egg_claim(ctx) != 0) return;
  for (long n = 0; n < size; n++) y[n] = data[DATA(n)];
  for (long n = 0; n < count; n++) {
    const long at = indexes[INDEX(n)];
    if (at >= 0 && at < size) y[at] = source[SOURCE(n)];
  }
}
