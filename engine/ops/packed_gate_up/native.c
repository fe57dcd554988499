/* y[m, n] = unit(gate, up) of two products of the same rows with two packed weights: blocks of gates and of ups
   alternate, so the rows' loads are shared and what lies between the products and the result never reaches memory. */
static inline const uint8_t *CAT(NAME, _block)(void *const *a, long n) {
  return (const uint8_t *)a[2 + n % 2] + n / 2 * BLOCK_BYTES;
}

EGG_INLINE void CAT(NAME, _finish)(void *const *a, const f32x8 *sums, int rows, int width, long m, long n) {
  f32x8 done[16];
  EGG_UNROLL for (int i = 0; i < rows * width; i++) done[i] = sums[i];
  UNIT(done, rows * width / 2);
  for (int r = 0; r < rows; r++)
    for (int b = 0; b < width / 2; b++) {
      const long at = 4 * n + 8 * b;
      egg_store_part((float *)a[0] + (m + r) * N + at, done[r * width / 2 + b], N - at);
    }
}
