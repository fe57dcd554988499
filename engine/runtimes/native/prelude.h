/* What every generated kernel may use: its context, number conversions, and functions that vectorise. */
#ifndef EGG_PRELUDE_H
#define EGG_PRELUDE_H

#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define EGG_CAT_(a, b) a##b
#define EGG_CAT(a, b) EGG_CAT_(a, b)
#define CAT(a, b) EGG_CAT(a, b)

/* Before a loop of few iterations whose arrays must stay in registers. */
#define EGG_UNROLL _Pragma("GCC unroll 16")

#define EGG_INLINE static inline __attribute__((always_inline))

/* One thread's view of the running op. */
typedef struct egg_ctx {
  int thread, threads;
  _Atomic long *claim; /* chunks of this op that are already taken */
  void *scratch;       /* EGG_SCRATCH bytes of this thread, 64-byte aligned */
} egg_ctx;

#define EGG_SCRATCH (2L << 20)

typedef void egg_kernel(void *const *a, const long *dims, egg_ctx *ctx);

/* The next chunk of the op's work that no thread has taken. */
static inline long egg_claim(egg_ctx *ctx) {
  return atomic_fetch_add_explicit(ctx->claim, 1, memory_order_relaxed);
}

/* a % b with the sign of a, and 0 where C has no answer. */
static inline int64_t egg_remainder(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }

/* Conversions without branches, so that loops over them vectorise. An f16's exponent and mantissa, read as those of a float,
   are the number times 2^-112, in the subnormal range as well. */
static inline float egg_f16_to_f32(uint16_t x) {
  union { uint32_t u; float f; } v = {(uint32_t)(x & 0x7fff) << 13};
  v.f *= 0x1p112f;
  v.u |= (x & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
  v.u |= (uint32_t)(x & 0x8000) << 16;
  return v.f;
}

/* Round to nearest, ties to even. Below the normal range the mantissa is aligned by adding a number that has the last bit of
   an f16 subnormal as its own last bit. */
static inline uint16_t egg_f32_to_f16(float x) {
  union { float f; uint32_t u; } v = {x}, low = {fabsf(x)};
  const uint32_t magnitude = low.u, normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  low.f += 0.5f;
  const uint32_t above = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
  const uint32_t bits = magnitude < 113u << 23 ? low.u - 0x3f000000 : normal;
  return (uint16_t)((magnitude < 143u << 23 ? bits : above) | (v.u >> 16 & 0x8000));
}

static inline float egg_bf16_to_f32(uint16_t x) {
  union { uint32_t u; float f; } v = {(uint32_t)x << 16};
  return v.f;
}

/* Round to nearest, ties to even; a NaN stays one. */
static inline uint16_t egg_f32_to_bf16(float x) {
  union { float f; uint32_t u; } v = {x};
  if ((v.u & 0x7fffffff) > 0x7f800000) return (uint16_t)(v.u >> 16 | 0x40);
  return (uint16_t)((v.u + 0x7fff + (v.u >> 16 & 1)) >> 16);
}

/* The 8-bit floats of the OCP specification: E5M2 is the upper half of an f16; E4M3 has no infinities and one NaN. */
static inline float egg_f8e5m2_to_f32(uint8_t x) {
  return egg_f16_to_f32((uint16_t)(x << 8));
}

static inline float egg_f8e4m3_to_f32(uint8_t x) {
  const int exponent = x >> 3 & 15, mantissa = x & 7;
  if ((x & 0x7f) == 0x7f) return NAN;
  const float y = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
  return x & 0x80 ? -y : y;
}

/* Round to nearest, ties to even; what is above the largest number becomes the pattern `above`. */
static inline uint8_t egg_f32_to_f8(float x, int mantissa_bits, int bias, int above, int nan) {
  const uint8_t sign = signbit(x) ? 0x80 : 0;
  if (x != x) return (uint8_t)(sign | nan);
  int exponent = 0;
  frexpf(x, &exponent); /* |x| is in [2^(exponent - 1), 2^exponent) */
  exponent = x == 0 || exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
  if (isinf(x) || exponent > bias + 1) return (uint8_t)(sign | above);
  const int bits = ((exponent + bias - 1) << mantissa_bits) + (int)rintf(ldexpf(fabsf(x), mantissa_bits - exponent));
  return (uint8_t)(sign | (bits < above ? bits : above));
}

static inline uint8_t egg_f32_to_f8e5m2(float x) { return egg_f32_to_f8(x, 2, 15, 0x7c, 0x7e); }
static inline uint8_t egg_f32_to_f8e4m3(float x) { return egg_f32_to_f8(x, 3, 7, 0x7f, 0x7f); }

/* p * 2^n for whole n: two factors, so that results in the subnormal range are right too. */
static inline float egg_scale_by_power(float p, float n) {
  const int32_t whole = (int32_t)n, half = whole >> 1, rest = whole - half;
  union { int32_t i; float f; } a = {(half + 127) * (1 << 23)}, b = {(rest + 127) * (1 << 23)};
  return p * a.f * b.f;
}

/* The nearest whole number, ties to even, of |x| < 2^22. */
static inline float egg_nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }

/* x within [low, high]; a NaN becomes low. */
static inline float egg_within(float x, float low, float high) {
  const float y = x > low ? x : low;
  return y < high ? y : high;
}

/* 2^x and e^x within 2 units in the last place, without branches, so that loops over them vectorise with the same bits.
   2^x = 2^n 2^f with |f| <= 1/2 and the Taylor polynomial of 2^f. */
static inline float egg_exp2f(float x) {
  const float clamped = egg_within(x, -151.0f, 129.0f), n = egg_nearest(clamped), f = clamped - n;
  float p = 1.5252734e-5f;
  p = p * f + 1.5403530e-4f;
  p = p * f + 1.3333558e-3f;
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.0f;
  const float y = egg_scale_by_power(p, n);
  return x != x ? x : y;
}

/* e^x = 2^n e^f, where f = x - n ln 2 is found in two steps, the first of them exact. */
static inline float egg_expf(float x) {
  const float clamped = egg_within(x, -105.0f, 90.0f), n = egg_nearest(clamped * 1.44269504f);
  const float f = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9841270e-4f;
  p = p * f + 1.3888889e-3f;
  p = p * f + 8.3333333e-3f;
  p = p * f + 4.1666667e-2f;
  p = p * f + 1.6666667e-1f;
  p = p * f + 0.5f;
  p = p * f + 1.0f;
  p = p * f + 1.0f;
  const float y = egg_scale_by_power(p, n);
  return x != x ? x : y;
}

/* 1 / sqrt(mean(x^2) + eps) of a row; squares are summed in 8 lanes (k modulo 8) and the lanes in order. */
static inline float egg_rms_scale(const float *restrict x, long k, float eps) {
  float lanes[8] = {0};
  long i = 0;
  for (; i + 8 <= k; i += 8)
    for (int l = 0; l < 8; l++) lanes[l] += x[i + l] * x[i + l];
  for (; i < k; i++) lanes[i & 7] += x[i] * x[i];
  float total = 0;
  for (int l = 0; l < 8; l++) total += lanes[l];
  return 1.0f / sqrtf(total * (1.0f / (float)k) + eps);
}

static inline void egg_widen_f16(float *restrict y, const uint16_t *restrict x, long n) {
  long i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i))));
#endif
  for (; i < n; i++) y[i] = egg_f16_to_f32(x[i]);
}

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

/* Ask for the `size` bytes at p, which need not exist. */
EGG_INLINE void egg_prefetch(const void *p, long size) {
  EGG_UNROLL for (long at = 0; at < size; at += 64) __builtin_prefetch((const char *)p + at, 0, 2);
}

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

/* A quantised row of k elements in groups of g: int16 codes, then a scale and then a sum of rounded values a group. */
#define EGG_ROW_BYTES(k, g) (2L * (k) + 8L * ((k) / (g)))

static inline void egg_quantize_row(uint8_t *restrict out, const float *restrict x, long k, long g) {
  int16_t *restrict codes = (int16_t *)out;
  float *restrict scales = (float *)(out + 2 * k), *restrict sums = scales + k / g;
  for (long group = 0; group < k / g; group++, x += g, codes += g) {
    union { int32_t bits; float number; } top = {0};
    /* Magnitudes compare like their bits, and a NaN is above them all: it must come out as one. */
    for (long i = 0; i < g; i++) {
      int32_t bits;
      memcpy(&bits, x + i, sizeof bits);
      bits &= 0x7fffffff;
      top.bits = bits > top.bits ? bits : top.bits;
    }
    /* A scale with a finite inverse, or none: what is left then is below any float's precision. */
    const float scale = top.number / 32767.0f, inverse = scale > 1e-37f ? 1.0f / scale : 0.0f;
    int32_t sum = 0;
    for (long i = 0; i < g; i++) {
      const int32_t code = (int32_t)egg_nearest(egg_within(x[i] * inverse, -32767.0f, 32767.0f));
      codes[i] = (int16_t)code;
      sum += code;
    }
    scales[group] = scale;
    sums[group] = (float)sum * scale;
  }
}

/* v[i] = silu(v[2 i]) * v[2 i + 1], with the operations of the primitives in their order. Not inlined: kernels end with it
   many times over. */
static __attribute__((noinline, unused)) void egg_swiglu(f32x8 *v, int count) {
  for (int i = 0; i < count; i++) {
    float gate[8], up[8];
    egg_store_f32x8(gate, v[2 * i]);
    egg_store_f32x8(up, v[2 * i + 1]);
    for (int l = 0; l < 8; l++) gate[l] = gate[l] * (1.0f / (egg_exp2f(gate[l] * -1.4426950408889634f) + 1.0f)) * up[l];
    v[i] = egg_load_f32x8(gate);
  }
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

/* Quantised weights: blocks of 8 rows, in each a group of G columns after the other, in each the codes, 8 scales and (with
   a minimum) 8 minima. Codes stand in vectors of 16-bit lanes, lane 2n + e for row n: with 4 bits a lane holds the columns
   8i + 2j + e, j = 0..3, from the low nibble up; with 8 bits the columns 4i + 2j + e, j = 0..1, from the low byte up. */
#define EGG_GROUP_BYTES(g, bits, scale_bits, minimum) ((g) * (bits) + (scale_bits) * (1 + (minimum)))

/* Vector j of the 16-bit codes in a vector of packed ones. */
static inline i16x16 egg_codes(i16x16 packed, int bits, int j) {
  if (bits == 4) return (i16x16)(j < 3 ? (u16x16)packed >> (4 * j) & 15 : (u16x16)packed >> 12);
  return j ? packed >> 8 : (packed << 8) >> 8;
}

static inline f32x8 egg_load_scales(const uint8_t *p, int scale_bits) {
  return scale_bits == 16 ? egg_load_f16x8(p) : egg_load_f32x8(p);
}

#endif
