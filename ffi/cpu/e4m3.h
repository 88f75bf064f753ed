// E4M3 (fn) block scales (docs/numerics.md section 1).
#pragma once

#include <algorithm>
#include <cstdint>

#include "floats.h"

namespace jax_nvfp4 {

// Round to nearest even, saturating at 448; NaN gives 0x7F.
NVFP4_INLINE uint8_t E4M3Encode(float value) {
  uint32_t bits = Bits(value);
  int32_t magnitude = std::min<int32_t>(bits & kAbs, Bits(448.0f));
  uint32_t normal = ((magnitude + 0x7FFFF + (magnitude >> 20 & 1)) >> 20) - (120 << 3);
  uint32_t subnormal = Bits(FromBits(magnitude) + 0x1p14f) - Bits(0x1p14f);  // 2^14 has an ulp of 2^-9, the step
  uint32_t code = Select(magnitude < static_cast<int32_t>(Bits(0x1p-6f)), subnormal, normal);
  return static_cast<uint8_t>(Select(value != value, 0x7F, (bits >> 24 & 0x80) | code));
}

NVFP4_INLINE float E4M3Value(uint8_t byte) {
  int32_t magnitude = byte & 0x7F;
  uint32_t subnormal = Bits(static_cast<float>(magnitude) * 0x1p-9f);
  uint32_t normal = (magnitude << 20) + (120 << 23);
  uint32_t bits = Select(magnitude < 8, subnormal, normal) | (byte & 0x80u) << 24;
  return FromBits(Select(magnitude == 0x7F, kNan, bits));
}

}  // namespace jax_nvfp4
