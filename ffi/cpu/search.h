// Four-over-six (docs/numerics.md section 5): of the scale that maps the block maximum to 6 and the one that maps it to
// 4, the one with the smaller error.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "e2m1.h"
#include "mode.h"
#include "scales.h"

namespace jax_nvfp4 {

// Both scales of a block with their multipliers.
struct Candidates {
  uint8_t scale[2];  // that to 6 first
  float multiplier[2];

  // Unlike the standard scale, the block amax is divided first.
  NVFP4_INLINE Candidates(float block_amax, const TensorScale& tensor) {
    const float base = block_amax / 6.0f * tensor.scale;
    scale[0] = E4M3Encode(AtMost(base, 448.0f));
    scale[1] = E4M3Encode(AtMost(base * 1.5f, 448.0f));
    for (int k = 0; k < 2; ++k) multiplier[k] = Multiplier(scale[k], tensor);
  }
};

// The sum of 16 terms in the order of a shuffle-down over 16 lanes.
NVFP4_INLINE float TreeSum(float* terms) {
  for (int64_t offset = kBlock / 2; offset > 0; offset /= 2) {
    for (int64_t i = 0; i < offset; ++i) terms[i] = terms[i] + terms[i + offset];
  }
  return terms[0];
}

// The error of 16 consecutive elements (section 5, steps 3 and 4).
NVFP4_INLINE float ScaleError(const float* __restrict x, uint8_t scale, float multiplier, const TensorScale& tensor,
                              const Search& search) {
  float terms[kBlock];
  const float unit = E4M3Value(scale);
  // The code of a NaN is 7: its value is 6 whatever its sign.
  for (int64_t i = 0; i < kBlock; ++i) {
    terms[i] = E2M1Value(static_cast<uint8_t>(E2M1Nearest(x[i] * multiplier))) * unit;
  }
  if (search.fp16) {
    for (int64_t i = 0; i < kBlock; ++i) terms[i] = terms[i] - x[i] * tensor.scale;
  } else {
    for (int64_t i = 0; i < kBlock; ++i) terms[i] = terms[i] * tensor.amax / tensor.range - x[i];
  }
  if (search.error == SearchError::kMse) {
    for (int64_t i = 0; i < kBlock; ++i) terms[i] = terms[i] * terms[i];
  } else {
    for (int64_t i = 0; i < kBlock; ++i) terms[i] = std::fabs(terms[i]);
  }
  if (search.error == SearchError::kAbsMax) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < kBlock; ++i) largest = std::max(largest, MagnitudeBits(terms[i]));
    return FromBits(largest);
  }
  if (search.tree) return TreeSum(terms);
  float sum = 0.0f;
  for (int64_t i = 0; i < kBlock; ++i) sum = sum + terms[i];
  return sum;
}

// Scales and multipliers of the blocks of a run, as BlockScales gives them. Blocks are 1x16 along x.
template <typename Float>
NVFP4_INLINE void SearchBlockScales(const typename Float::Word* __restrict x, const float* __restrict amax,
                                    int64_t blocks, const TensorScale& tensor, const Search& search,
                                    uint8_t* __restrict scales, float* __restrict multipliers) {
  for (int64_t block = 0; block < blocks; ++block) {
    float values[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) values[i] = Float::Widen(x[block * kBlock + i]);
    const Candidates of(amax[block], tensor);
    float error[2];
    for (int k = 0; k < 2; ++k) error[k] = ScaleError(values, of.scale[k], of.multiplier[k], tensor, search);
    const int picked = error[1] < error[0];
    scales[block] = of.scale[picked];
    multipliers[block] = of.multiplier[picked];
  }
}

// The same where each column of a strip of 16 rows is a block.
template <typename Float>
NVFP4_INLINE void SearchColumnScales(const typename Float::Word* __restrict x, int64_t stride,
                                     const float* __restrict amax, int64_t cols, const TensorScale& tensor,
                                     const Search& search, uint8_t* __restrict scales,
                                     float* __restrict multipliers) {
  for (int64_t c = 0; c < cols; ++c) {
    typename Float::Word column[kBlock];
    for (int64_t r = 0; r < kBlock; ++r) column[r] = x[r * stride + c];
    SearchBlockScales<Float>(column, amax + c, 1, tensor, search, scales + c, multipliers + c);
  }
}

// The same where 16x16 tiles of a strip are the blocks: the errors of the 16 rows are summed by the tree,
// whatever they measure.
template <typename Float>
NVFP4_INLINE void SearchTileScales(const typename Float::Word* __restrict x, int64_t stride,
                                   const float* __restrict amax, int64_t tiles, const TensorScale& tensor,
                                   const Search& search, uint8_t* __restrict scales, float* __restrict multipliers) {
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const Candidates of(amax[tile], tensor);
    float error[2];
    for (int k = 0; k < 2; ++k) {
      float of_row[kBlock];
      for (int64_t r = 0; r < kBlock; ++r) {
        float values[kBlock];
        for (int64_t i = 0; i < kBlock; ++i) values[i] = Float::Widen(x[r * stride + tile * kBlock + i]);
        of_row[r] = ScaleError(values, of.scale[k], of.multiplier[k], tensor, search);
      }
      error[k] = TreeSum(of_row);
    }
    const int picked = error[1] < error[0];
    scales[tile] = of.scale[picked];
    multipliers[tile] = of.multiplier[picked];
  }
}

}  // namespace jax_nvfp4
