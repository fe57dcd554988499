/* y[row] = softmax of the expression's row, over K elements. */
void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  float *restrict y = a[0];
  LEAVES
  const long rows = M, width = K;
  (void)dims;
  for (long row; (row = egg_claim(ctx)) < rows;) {
    float *restrict q = y + row * width;
    FILL_ROW
    float top = q[0];
    for (long k = 1; k < width; k++) top = q[k] > top || q[k] != q[k] ? q[k] : top;
    float total = 0;
    for (long k = 0; k < width; k++) q[k] = egg_expf(q[k] - top);
    for (long k = 0; k < width; k++) total += q[k];
    const float scale = 1.0f / total;
    for (long k = 0; k < width; k++) q[k] *= scale;
  }
}
