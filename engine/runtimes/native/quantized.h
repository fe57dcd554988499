/* The formats of quantised activations and weights. */

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
