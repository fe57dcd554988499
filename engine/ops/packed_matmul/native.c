/* y[m, n] = (added[m * ADD_ROW + n] +) sum over k of x[m, k] * w[n, k]. */
static inline const uint8_t *CAT(NAME, _block)(void *const *a, long n) { return (const uint8_t *)a[2] + n * BLOCK_BYTES; }

EGG_INLINE void CAT(NAME, _finish)(void *const *a, const f32x8 *sums, int rows, int width, long m, long n) {
  EGG_UNROLL for (int r = 0; r < rows; r++)
    EGG_UNROLL for (int b = 0; b < width; b++) {
      const long at = 8 * (n + b), index = (m + r) * N + at;
      f32x8 sum = sums[r * width + b];
      if (ADD) sum = egg_load_part((const float *)a[3] + (m + r) * ADD_ROW + at, N - at) + sum;
      egg_store_part((float *)a[0] + index, sum, N - at);
    }
}
