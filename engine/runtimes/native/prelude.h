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

/* 2^x within 2 units in the last place, without branches, so that loops over it vectorise. x = n + f with |f| <= 1/2;
   2^f by its Taylor polynomial, 2^n by two factors, so that results in the subnormal range are right too. */
static inline float egg_exp2f(float x) {
  const float clamped = x < -151.0f ? -151.0f : x > 129.0f ? 129.0f : x;
  const float n = __builtin_rintf(clamped), f = clamped - n;
  float p = 1.5252734e-5f;
  p = p * f + 1.5403530e-4f;
  p = p * f + 1.3333558e-3f;
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.0f;
  const int32_t whole = (int32_t)n, half = whole >> 1, rest = whole - half;
  union { int32_t i; float f; } a = {(half + 127) << 23}, b = {(rest + 127) << 23};
  const float y = p * a.f * b.f;
  return x != x ? x : y;
}

static inline float egg_expf(float x) { return egg_exp2f(x * 1.44269504088896341f); }

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

/* Sum of x[i] * y[i], in 8 lanes (i modulo 8) that are added in order. */
static inline float egg_dot(const float *restrict x, const float *restrict y, long n) {
  float lanes[8] = {0};
  long i = 0;
  for (; i + 8 <= n; i += 8)
    for (int l = 0; l < 8; l++) lanes[l] += x[i + l] * y[i + l];
  for (; i < n; i++) lanes[i & 7] += x[i] * y[i];
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

static inline void egg_f16_to_f32(float *restrict y, const uint16_t *restrict x, long n) {
  long i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i))));
#endif
  for (; i < n; i++) {
    _Float16 half;
    memcpy(&half, x + i, sizeof half);
    y[i] = (float)half;
  }
}

#endif
