/* 256-bit vectors. GCC and Clang split them where the machine's are narrower. */
typedef int16_t i16x16 __attribute__((vector_size(32)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef float f32x8 __attribute__((vector_size(32)));

static inline i16x16 egg_load_i16x16(const void *p) {
  i16x16 v;
  memcpy(&v, p, sizeof v);
  return v;
}

static inline f32x8 egg_load_f32x8(const void *p) {
  f32x8 v;
  memcpy(&v, p, sizeof v);
  return v;
}

static inline void egg_store_f32x8(void *p, f32x8 v) { memcpy(p, &v, sizeof v); }

/* The first `count` lanes of a vector that may end outside a row, or begin there: all lanes from 8, none below 1. */
static inline f32x8 egg_load_part(const float *p, long count) {
  if (count >= 8) return egg_load_f32x8(p);
  f32x8 v = {0};
  if (count > 0) memcpy(&v, p, (size_t)count * sizeof *p);
  return v;
}

static inline void egg_store_part(float *p, f32x8 v, long count) {
  if (count >= 8) egg_store_f32x8(p, v);
  else if (count > 0) memcpy(p, &v, (size_t)count * sizeof *p);
}

/* How far ahead, in bytes, a stream through memory asks for what it will need: far enough to hide the latency. */
#define EGG_AHEAD 3072

/* Ask for the `size` bytes at p, which need not exist: into all caches (3), or past the first, which is small (2). */
#define egg_prefetch(p, size, level) \
  do { \
    EGG_UNROLL for (long at_ = 0; at_ < (size); at_ += 64) __builtin_prefetch((const char *)(p) + at_, 0, level); \
  } while (0)

/* Two adjacent 16-bit numbers in every 32-bit lane. */
static inline i16x16 egg_spread_pair(const int16_t *p) {
  int32_t pair;
  memcpy(&pair, p, sizeof pair);
  return (i16x16)(i32x8){pair, pair, pair, pair, pair, pair, pair, pair};
}

static inline f32x8 egg_spread(float x) { return (f32x8){x, x, x, x, x, x, x, x}; }

/* Add to each 32-bit lane of sum the two products of the 16-bit halves of a and b, here and now: GCC would rather gather a
   chain's terms first, and run out of registers. */
static inline i32x8 egg_dot(i32x8 sum, i16x16 a, i16x16 b) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return (i32x8)_mm256_dpwssd_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#elif defined(__AVXVNNI__)
  return (i32x8)_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#elif defined(__AVX2__)
  sum += (i32x8)_mm256_madd_epi16((__m256i)a, (__m256i)b);
  __asm__("" : "+v"(sum));
  return sum;
#else
  const i32x8 x = (i32x8)a, y = (i32x8)b;
  return sum + ((x << 16) >> 16) * ((y << 16) >> 16) + (x >> 16) * (y >> 16);
#endif
}

static inline f32x8 egg_fma(f32x8 a, f32x8 b, f32x8 c) {
#if defined(__FMA__)
  return (f32x8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__FP_FAST_FMAF)
  for (int l = 0; l < 8; l++) c[l] = __builtin_fmaf(a[l], b[l], c[l]);
  return c;
#else
  return a * b + c;
#endif
}

static inline f32x8 egg_load_f16x8(const void *p) {
#if defined(__F16C__)
  return (f32x8)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#else
  float wide[8];
  egg_widen_f16(wide, p, 8);
  return egg_load_f32x8(wide);
#endif
}

/* Eight bf16 numbers that are the even (odd = 0) or odd halves of the 32-bit lanes at p. */
static inline f32x8 egg_half_bf16(const void *p, int odd) {
  const i32x8 v = (i32x8)egg_load_i16x16(p);
  return (f32x8)(odd ? v & (int32_t)0xffff0000 : v << 16);
}

/* The same of f16 numbers. */
static inline f32x8 egg_half_f16(const void *p, int odd) {
  i32x8 v = (i32x8)egg_load_i16x16(p);
  v = odd ? (i32x8)((u32x8)v >> 16) : v & 0xffff;
  uint16_t narrow[8];
  for (int l = 0; l < 8; l++) narrow[l] = (uint16_t)v[l];
  return egg_load_f16x8(narrow);
}

/* Lane j of the result is the sum of the lanes of v[j], added pairwise. */
static inline f32x8 egg_sums_of_lanes(const f32x8 *v) {
#define EGG_SHUFFLE __builtin_shufflevector
  f32x8 pairs[4], fours[2];
  EGG_UNROLL for (int i = 0; i < 4; i++)
    pairs[i] = EGG_SHUFFLE(v[2 * i], v[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13) + EGG_SHUFFLE(v[2 * i], v[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  EGG_UNROLL for (int i = 0; i < 2; i++)
    fours[i] = EGG_SHUFFLE(pairs[2 * i], pairs[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) + EGG_SHUFFLE(pairs[2 * i], pairs[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
  return EGG_SHUFFLE(fours[0], fours[1], 0, 1, 2, 3, 8, 9, 10, 11) + EGG_SHUFFLE(fours[0], fours[1], 4, 5, 6, 7, 12, 13, 14, 15);
#undef EGG_SHUFFLE
}

/* The larger of each two lanes; where one is a NaN, b. */
static inline f32x8 egg_larger(f32x8 a, f32x8 b) {
  const i32x8 first = a > b;
  return (f32x8)(((i32x8)a & first) | ((i32x8)b & ~first));
}

static inline float egg_largest_lane(f32x8 v) {
  v = egg_larger(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3));
  v = egg_larger(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5));
  return egg_larger(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6))[0];
}

static inline float egg_sum_of_lanes(f32x8 v) {
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
  return v[0] + v[1];
}

/* n numbers as vectors, the last one padded with zeros. */
static inline void egg_pad_f32x8(f32x8 *restrict y, const float *restrict x, long n) {
  long i = 0;
  for (; i + 8 <= n; i += 8) y[i / 8] = egg_load_f32x8(x + i);
  if (i < n) {
    float rest[8] = {0};
    for (long l = i; l < n; l++) rest[l - i] = x[l];
    y[i / 8] = egg_load_f32x8(rest);
  }
}

static inline void egg_pad_f16x8(f32x8 *restrict y, const uint16_t *restrict x, long n) {
  long i = 0;
  for (; i + 8 <= n; i += 8) y[i / 8] = egg_load_f16x8(x + i);
  if (i < n) {
    float rest[8] = {0};
    egg_widen_f16(rest, x + i, n - i);
    y[i / 8] = egg_load_f32x8(rest);
  }
}

/* v[i] = unit(v[2 i], v[2 i + 1]), with the operations of the primitives in their order. Not inlined: kernels end with it
   many times over. */
static __attribute__((noinline, unused)) void egg_swiglu(f32x8 *v, int count) {
  for (int i = 0; i < count; i++) {
    float gate[8], up[8];
    egg_store_f32x8(gate, v[2 * i]);
    egg_store_f32x8(up, v[2 * i + 1]);
    for (int l = 0; l < 8; l++) gate[l] = gate[l] * egg_sigmoid(gate[l]) * up[l];
    v[i] = egg_load_f32x8(gate);
  }
}

static __attribute__((noinline, unused)) void egg_geglu(f32x8 *v, int count) {
  for (int i = 0; i < count; i++) {
    float gate[8], up[8];
    egg_store_f32x8(gate, v[2 * i]);
    egg_store_f32x8(up, v[2 * i + 1]);
    for (int l = 0; l < 8; l++) {
      const float x = gate[l], bent = x * x * x * 0.044715f + x;
      gate[l] = x * egg_sigmoid(bent * 1.5957691216057308f) * up[l];
    }
    v[i] = egg_load_f32x8(gate);
  }
}
