// The random Hadamard transform of a strip of 16 rows (docs/numerics.md section 3): every column of it is one block.
#pragma once

#include <cstdint>

#include "blocks.h"
#include "floats.h"

namespace jax_nvfp4 {

// y[r][c] = the transform of column c, rounded to Out; `signs` has bit i set where row i is negated. Sign and scale
// come first, then the butterflies of stride 1, 2, 4 and 8: that order is the contract.
template <typename Float, typename Out>
NVFP4_KERNEL void HadamardStrip(const typename Float::Word* __restrict x, int64_t stride, int64_t cols, uint32_t signs,
                                typename Out::Word (*__restrict y)[kStripCols]) {
  float v[kBlock][kStripCols];
  for (int64_t r = 0; r < kBlock; ++r) {
    const float factor = signs >> r & 1 ? -0.25f : 0.25f;
    for (int64_t c = 0; c < cols; ++c) v[r][c] = Float::Widen(x[r * stride + c]) * factor;
  }
  for (int64_t distance = 1; distance < kBlock; distance *= 2) {
    for (int64_t r = 0; r < kBlock; ++r) {
      if (r & distance) continue;
      for (int64_t c = 0; c < cols; ++c) {
        const float a = v[r][c], b = v[r + distance][c];
        v[r][c] = a + b;
        v[r + distance][c] = a - b;
      }
    }
  }
  for (int64_t r = 0; r < kBlock; ++r) {
    for (int64_t c = 0; c < cols; ++c) y[r][c] = Out::Narrow(v[r][c]);
  }
}

}  // namespace jax_nvfp4
