// E5M2 elements of MXFP8.
#pragma once

#include <algorithm>
#include <cstdint>

#include "floats.h"

namespace jax_nvfp4 {

// Round to nearest even, saturating at 57344; NaN gives 0x7F.
NVFP4_INLINE uint8_t E5M2Encode(float value) {
  const uint32_t bits = Bits(value);
  const int32_t magnitude = std::min<int32_t>(bits & kAbs, Bits(57344.0f));
  const uint32_t normal = ((magnitude + 0xFFFFF + (magnitude >> 21 & 1)) >> 21) - (112 << 2);
  const uint32_t subnormal = Bits(FromBits(magnitude) + 0x1p7f) - Bits(0x1p7f);  // 2^7 has an ulp of 2^-16, the step
  const uint32_t code = Select(magnitude < static_cast<int32_t>(Bits(0x1p-14f)), subnormal, normal);
  return static_cast<uint8_t>(Select(value != value, 0x7F, (bits >> 24 & 0x80) | code));
}

// The high byte of a float16.
NVFP4_INLINE float E5M2Value(uint8_t byte) { return Float16::Widen(static_cast<uint16_t>(byte << 8)); }

}  // namespace jax_nvfp4
