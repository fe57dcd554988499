/* Number conversions, and functions that vectorise. */

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

/* With the operations of the primitives in their order. */
static inline float egg_sigmoid(float x) { return 1.0f / (egg_exp2f(x * -1.4426950408889634f) + 1.0f); }

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

/* The sum of a row, in 8 lanes (k modulo 8) and then the lanes in order. */
static inline float egg_row_sum(const float *restrict x, long k) {
  float lanes[8] = {0};
  long i = 0;
  for (; i + 8 <= k; i += 8)
    for (int l = 0; l < 8; l++) lanes[l] += x[i + l];
  for (; i < k; i++) lanes[i & 7] += x[i];
  float total = 0;
  for (int l = 0; l < 8; l++) total += lanes[l];
  return total;
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
