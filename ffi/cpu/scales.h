// The two levels of scaling (docs/numerics.md section 2, steps 1 to 5 and 7) and where block scales are stored
// (section 9).
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "e4m3.h"
#include "operands.h"

namespace jax_nvfp4 {

constexpr float kFloatMax = std::numeric_limits<float>::max();
constexpr float kScaleRange = 6.0f * 448.0f;

// min(value, bound), NaN staying NaN.
NVFP4_INLINE float AtMost(float value, float bound) { return value > bound ? bound : value; }

// What one amax G fixes: S and its reciprocal, steps 1 and 2.
struct TensorScale {
  float sixth;  // fl(S * fl(1/6))
  float inverse;

  explicit TensorScale(float amax) {
    float scale = AtMost(kScaleRange / amax, kFloatMax);
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

// Step 7: what E2M1 values are multiplied by to dequantize.
NVFP4_INLINE float DequantFactor(uint8_t scale, float amax) {
  return E4M3Value(scale) * amax * (1.0f / kScaleRange);
}

// Block scales of a batch of (rows, blocks) operands, linear or swizzled.
class ScaleWriter {
 public:
  ScaleWriter(void* bytes, int64_t batch, int64_t rows, int64_t blocks, bool swizzled)
      : bytes_(static_cast<uint8_t*>(bytes)),
        swizzled_(swizzled),
        padded_blocks_(swizzled ? RoundUp(blocks, kSwizzleColumns) : blocks),
        matrix_((swizzled ? RoundUp(rows, kSwizzleRows) : rows) * padded_blocks_) {
    if (matrix_ != rows * blocks) std::memset(bytes_, 0, batch * matrix_);
  }

  // Stores `count` scales of one row from block `block` on, which is a multiple of 4.
  NVFP4_INLINE void Store(int64_t batch, int64_t row, int64_t block, const uint8_t* scales, int64_t count) const {
    uint8_t* base = bytes_ + batch * matrix_;
    if (!swizzled_) {
      std::memcpy(base + row * padded_blocks_ + block, scales, count);
      return;
    }
    uint8_t* out = base + (row / 128 * (padded_blocks_ / 4) + block / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4;
    for (; count >= 4; count -= 4, scales += 4, out += 512) std::memcpy(out, scales, 4);
    std::memcpy(out, scales, count);
  }

 private:
  uint8_t* bytes_;
  bool swizzled_;
  int64_t padded_blocks_;
  int64_t matrix_;
};

}  // namespace jax_nvfp4
