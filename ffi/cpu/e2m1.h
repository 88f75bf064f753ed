// E2M1 elements (docs/numerics.md sections 1 and 6): rounding a float32 to a 4-bit code, and its value.
#pragma once

#include <algorithm>
#include <cstdint>

#include "floats.h"

namespace jax_nvfp4 {

// min(|value|, 6). As an integer minimum it turns NaN into 6 too: its code is 7.
NVFP4_INLINE float SaturatedMagnitude(float value) {
  return FromBits(std::min<int32_t>(Bits(value) & kAbs, Bits(6.0f)));
}

// Bit 3 of the code; NaN has none.
NVFP4_INLINE uint32_t SignBit(float value) {
  return Select(value != value, 0, Bits(value) >> 28 & 8);
}

// Round to nearest even. The grid steps by 0.5 up to 2, by 1 up to 4 and by 2 up to 6. Adding a power of two whose
// ulp is that step rounds to it; each of the three counts is right on its own range and too large on the others.
NVFP4_INLINE uint32_t E2M1Nearest(float value) {
  float magnitude = SaturatedMagnitude(value);
  int32_t halves = Bits(magnitude + 0x1p22f) - Bits(0x1p22f);
  int32_t ones = Bits(magnitude + 0x1p23f) - Bits(0x1p23f) + 2;
  int32_t twos = Bits(magnitude + 0x1p24f) - Bits(0x1p24f) + 4;
  return static_cast<uint32_t>(std::min(std::min(halves, ones), twos)) | SignBit(value);
}

// The value of E2M1Nearest(value), without the code; a NaN gives 6 with its own sign. The grid steps by half a binade,
// which is the ulp of 2^22 times the binade.
NVFP4_INLINE float E2M1Rounded(float value) {
  float magnitude = SaturatedMagnitude(value);
  uint32_t binade = std::max<int32_t>(Bits(magnitude), Bits(1.0f)) & kInf;
  float shift = FromBits(binade + (22u << 23));
  return FromBits(Bits((magnitude + shift) - shift) | (Bits(value) & ~kAbs));
}

// Stochastic rounding with one random byte: up iff fl(256 * frac + byte) >= 256. That sum is the one inexact step.
NVFP4_INLINE uint32_t E2M1Stochastic(float value, uint8_t byte) {
  float magnitude = SaturatedMagnitude(value);
  uint32_t binade = std::max<int32_t>(Bits(magnitude), Bits(1.0f)) & kInf;
  float steps = magnitude * FromBits(kInf - binade);  // 2 / binade, as the grid steps by half a binade
  int32_t whole = static_cast<int32_t>(steps);
  float frac = steps - static_cast<float>(whole);
  uint32_t up = 256.0f * frac + static_cast<float>(byte) >= 256.0f ? 1 : 0;
  return (whole + ((binade - Bits(1.0f)) >> 22) + up) | SignBit(value);
}

// Every value is a bfloat16, so it is put together in 16 bits: from 1 on, the code is exponent and mantissa bit.
NVFP4_INLINE float E2M1Value(uint8_t code) {
  uint16_t index = code & 7;
  uint16_t normal = static_cast<uint16_t>((index + 252) << 6);
  uint16_t below_one = static_cast<uint16_t>(-index & 0x3F00);
  uint16_t word = index < 2 ? below_one : normal;
  return BFloat16::Widen(static_cast<uint16_t>(word | (code & 8) << 12));
}

}  // namespace jax_nvfp4
