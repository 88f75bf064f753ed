// The steps of quantization (docs/numerics.md section 2, steps 3 to 7) over short runs that stay in the L1
// cache, as straight loops that the compiler vectorizes. A run is part of one row unless it says otherwise.
#pragma once

#include <algorithm>
#include <cstdint>

#include "call.h"
#include "e2m1.h"
#include "floats.h"
#include "parallel.h"
#include "scales.h"

namespace jax_nvfp4 {

constexpr int64_t kRun = 1024;       // elements of one row handled at a time
constexpr int64_t kStripRows = 128;  // rows of several strips: the codes of a column fill a cache line or more
constexpr int64_t kStripCols = 256;  // columns of a strip of 16 rows

// Calls body(index, start, count) for runs that cover x or y: `count` elements from `start` on, which share the
// amax `index`. Blocks along rows are contiguous in memory, so all that shares an amax is one long row.
template <typename Body>
void ForEachRun(ffi::ThreadPool& pool, const Call& call, const Body& body) {
  const int64_t scope = call.size() / call.scopes();
  const int64_t runs = (scope + kRun - 1) / kRun;
  ParallelFor(pool, call.scopes() * runs, std::min(scope, kRun), [&](int64_t run) {
    const int64_t index = run / runs, offset = run % runs * kRun;
    body(index, index * scope + offset, std::min(kRun, scope - offset));
  });
}

// The largest |x| of each block of one row.
template <typename Float, int64_t kLength = kBlock>
NVFP4_INLINE void RowAmax(const typename Float::Word* __restrict x, int64_t blocks, float* __restrict amax) {
  for (int64_t block = 0; block < blocks; ++block) {
    decltype(MagnitudeBits(*x)) largest = 0;
    for (int64_t i = 0; i < kLength; ++i) largest = std::max(largest, MagnitudeBits(x[block * kLength + i]));
    amax[block] = Amax<Float>(largest);
  }
}

// The largest |x| of each column of a strip.
template <typename Float, int64_t kRows = kBlock>
NVFP4_INLINE void ColumnAmax(const typename Float::Word* __restrict x, int64_t stride, int64_t cols,
                             float* __restrict amax) {
  decltype(MagnitudeBits(*x)) largest[kStripCols] = {};
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t c = 0; c < cols; ++c) largest[c] = std::max(largest[c], MagnitudeBits(x[row * stride + c]));
  }
  for (int64_t c = 0; c < cols; ++c) amax[c] = Amax<Float>(largest[c]);
}

// The largest |x| of each 16x16 tile of a strip.
template <typename Float>
NVFP4_INLINE void TileAmax(const typename Float::Word* __restrict x, int64_t stride, int64_t cols,
                           float* __restrict amax) {
  float columns[kStripCols];
  ColumnAmax<Float>(x, stride, cols, columns);
  RowAmax<Float32>(columns, cols / kBlock, amax);
}

NVFP4_INLINE void BlockScales(const float* __restrict amax, int64_t blocks, const TensorScale& tensor,
                              uint8_t* __restrict scales, float* __restrict multipliers) {
  for (int64_t block = 0; block < blocks; ++block) {
    uint8_t scale = BlockScale(amax[block], tensor);
    scales[block] = scale;
    multipliers[block] = Multiplier(scale, tensor);
  }
  if (tensor.math == Math::kExact) return;
  for (int64_t block = 0; block < blocks; ++block) multipliers[block] = FastMultiplier(scales[block], tensor);
}

NVFP4_INLINE void DequantFactors(const uint8_t* __restrict scales, int64_t blocks, float amax, float emax,
                                 float* __restrict factors) {
  for (int64_t block = 0; block < blocks; ++block) factors[block] = DequantFactor(scales[block], amax, emax);
}

// One value per block to one per element.
template <int64_t kLength = kBlock, typename T>
NVFP4_INLINE void Repeat(const T* __restrict per_block, int64_t blocks, T* __restrict per_element) {
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t i = 0; i < kLength; ++i) per_element[block * kLength + i] = per_block[block];
  }
}

template <typename Float>
NVFP4_INLINE void NearestCodes(const typename Float::Word* __restrict x, const float* __restrict multipliers,
                               int64_t count, uint8_t* __restrict codes) {
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = static_cast<uint8_t>(E2M1Nearest(Float::Widen(x[i]) * multipliers[i]));
  }
}

template <typename Float>
NVFP4_INLINE void StochasticCodes(const typename Float::Word* __restrict x, const float* __restrict multipliers,
                                  const uint8_t* __restrict random, int64_t count, uint8_t* __restrict codes) {
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = static_cast<uint8_t>(E2M1Stochastic(Float::Widen(x[i]) * multipliers[i], random[i]));
  }
}

// y = E2M1(code) * factor, rounded once.
template <typename Float>
NVFP4_INLINE void DequantizeCodes(const uint8_t* __restrict codes, const float* __restrict factors, int64_t count,
                                  typename Float::Word* __restrict y) {
  for (int64_t i = 0; i < count; ++i) y[i] = Float::Narrow(E2M1Value(codes[i]) * factors[i]);
}

// Two codes to a byte, the even element low.
NVFP4_INLINE void Pack(const uint8_t* __restrict codes, int64_t count, uint8_t* __restrict bytes) {
  for (int64_t i = 0; i < count / 2; ++i) bytes[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
}

NVFP4_INLINE void Unpack(const uint8_t* __restrict bytes, int64_t count, uint8_t* __restrict codes) {
  for (int64_t i = 0; i < count / 2; ++i) {
    codes[2 * i] = bytes[i] & 15;
    codes[2 * i + 1] = bytes[i] >> 4;
  }
}

}  // namespace jax_nvfp4
