/* y[m] = softmax of row m of x, over K elements. */
void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  float *restrict y = a[0];
  const float *restrict x = a[1];
  const long rows = M, width = K;
  (void)dims;
  for (long m; (m = egg_claim(ctx)) < rows;) {
    const float *restrict p = x + m * width;
    float *restrict q = y + m * width;
    float top = p[0];
    for (long k = 1; k < width; k++) top = p[k] > top || p[k] != p[k] ? p[k] : top;
    float total = 0;
    for (long k = 0; k < width; k++) q[k] = egg_expf(p[k] - top);
    for (long k = 0; k < width; k++) total += q[k];
    const float scale = 1.0f / total;
    for (long k = 0; k < width; k++) q[k] *= scale;
  }
}
