// E8M0 block scales, powers of two (docs/numerics.md sections 1 and 8).
#pragma once

#include <algorithm>
#include <cstdint>

#include "floats.h"

namespace jax_nvfp4 {

constexpr uint8_t kE8M0Nan = 255;

// The smallest power of two that is not below a value >= 0; above 2^127, Inf and NaN give NaN.
NVFP4_INLINE uint8_t E8M0Ceil(float value) {
  const uint32_t bits = Bits(value) & kAbs, exponent = bits >> 23, mantissa = bits & 0x7FFFFF;
  const uint32_t up = Select(exponent == 0, mantissa > 0x400000, mantissa != 0);
  return static_cast<uint8_t>(std::min<uint32_t>(exponent + up, kE8M0Nan));
}

// The power of two of the largest binade of a block over that of its element format, which is 2^emax.
NVFP4_INLINE uint8_t E8M0Floor(float value, int32_t emax) {
  const int32_t exponent = (Bits(value) & kAbs) >> 23;
  return static_cast<uint8_t>(Select(exponent == 255, kE8M0Nan, std::max(0, exponent - emax)));
}

NVFP4_INLINE float E8M0Value(uint8_t byte) {
  return FromBits(Select(byte == kE8M0Nan, kNan, Select(byte == 0, 0x00400000, static_cast<uint32_t>(byte) << 23)));
}

// What elements are multiplied by: the reciprocal, exact.
NVFP4_INLINE float E8M0Multiplier(uint8_t byte) {
  return FromBits(Select(byte == kE8M0Nan, kNan, Bits(E8M0Value(static_cast<uint8_t>(254 - byte)))));
}

}  // namespace jax_nvfp4
