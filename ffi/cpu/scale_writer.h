// Where block scales are stored (docs/numerics.md section 9).
#pragma once

#include <cstdint>
#include <cstring>

#include "formats.h"
#include "vectorize.h"

namespace jax_nvfp4 {

// Block scales of a batch of (rows, blocks) operands, linear or swizzled.
class ScaleWriter {
 public:
  ScaleWriter(void* bytes, int64_t batch, int64_t rows, int64_t blocks, bool swizzled)
      : bytes_(static_cast<uint8_t*>(bytes)),
        swizzled_(swizzled),
        padded_rows_(swizzled ? RoundUp(rows, kSwizzleRows) : rows),
        padded_blocks_(swizzled ? RoundUp(blocks, kSwizzleColumns) : blocks),
        matrix_(padded_rows_ * padded_blocks_) {
    if (matrix_ != rows * blocks) std::memset(bytes_, 0, batch * matrix_);
  }

  // Consecutive blocks whose scales are swizzled by themselves: those of a group, or all.
  struct Region {
    int64_t first_block;
    int64_t blocks;
  };
  Region Whole() const { return {0, padded_blocks_}; }
  Region From(int64_t first_block) const { return {first_block, padded_blocks_ - first_block}; }

  // Stores `count` scales of one row from block `block` on, a multiple of kSwizzleColumns from the start of its region.
  NVFP4_INLINE void Store(int64_t batch, int64_t row, int64_t block, const uint8_t* scales, int64_t count,
                          Region region) const {
    uint8_t* base = bytes_ + batch * matrix_;
    if (!swizzled_) {
      std::memcpy(base + row * padded_blocks_ + block, scales, count);
      return;
    }
    constexpr int64_t kTile = kSwizzleRows * kSwizzleColumns;
    const int64_t tiles = region.blocks / kSwizzleColumns, tile = (block - region.first_block) / kSwizzleColumns;
    uint8_t* out = base + padded_rows_ * region.first_block + (row / kSwizzleRows * tiles + tile) * kTile +
                   row % kSwizzleLanes * (kTile / kSwizzleLanes) + row % kSwizzleRows / kSwizzleLanes * kSwizzleColumns;
    for (; count >= kSwizzleColumns; count -= kSwizzleColumns, scales += kSwizzleColumns, out += kTile) {
      std::memcpy(out, scales, kSwizzleColumns);
    }
    std::memcpy(out, scales, count);
  }

 private:
  uint8_t* bytes_;
  bool swizzled_;
  int64_t padded_rows_;
  int64_t padded_blocks_;
  int64_t matrix_;
};

}  // namespace jax_nvfp4
