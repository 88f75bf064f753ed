// The two levels of NVFP4 scaling (docs/numerics.md section 2, steps 1 to 5 and 7).
#pragma once

#include <cstdint>
#include <limits>

#include "e4m3.h"
#include "formats.h"
#include "mode.h"
#include "reciprocal.h"

namespace jax_nvfp4 {

constexpr int64_t kBlock = Facts(Format::kNvfp4).block;
constexpr float kFloatMax = std::numeric_limits<float>::max();

// min(value, bound), NaN staying NaN.
NVFP4_INLINE float AtMost(float value, float bound) { return value > bound ? bound : value; }

// What one amax G fixes: S and its reciprocal, steps 1 and 2, for block scales up to Emax.
struct TensorScale {
  float amax;
  float range;  // 6 * Emax
  float scale;
  float sixth;  // fl(S * fl(1/6))
  float inverse;
  Math math;

  TensorScale(float amax, const Mode& mode) : amax(amax), range(6.0f * mode.emax), math(mode.math) {
    scale = AtMost(range / amax, kFloatMax);
    if (amax == 0.0f || scale == 0.0f) scale = 1.0f;
    sixth = scale * (1.0f / 6.0f);
    inverse = 1.0f / scale;
  }
};

// Step 4: the block scale byte. The block term is rounded once, so B multiplies the finished fl(S * fl(1/6)).
NVFP4_INLINE uint8_t BlockScale(float block_amax, const TensorScale& tensor) {
  return E4M3Encode(AtMost(block_amax * tensor.sixth, 448.0f));
}

// Step 5: what the elements of a block are multiplied by before they are rounded.
NVFP4_INLINE float Multiplier(uint8_t scale, const TensorScale& tensor) {
  return AtMost(1.0f / (E4M3Value(scale) * tensor.inverse), kFloatMax);
}
NVFP4_INLINE float FastMultiplier(uint8_t scale, const TensorScale& tensor) {
  return AtMost(ApproximateReciprocal(E4M3Value(scale) * tensor.inverse), kFloatMax);
}

// Step 7: what E2M1 values are multiplied by to dequantize.
NVFP4_INLINE float DequantFactor(uint8_t scale, float amax, float emax) {
  return E4M3Value(scale) * amax * (1.0f / (6.0f * emax));
}

}  // namespace jax_nvfp4
