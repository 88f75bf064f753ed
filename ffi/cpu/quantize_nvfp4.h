// NVFP4 runs and strips: codes and block scales along rows, along columns, or of 16x16 tiles (docs/numerics.md sections
// 2 to 6).
#pragma once

#include <cstdint>
#include <cstring>

#include "blocks.h"
#include "job.h"
#include "philox.h"
#include "rht.h"
#include "search.h"

namespace jax_nvfp4 {

// The key and the place of one batch element in the global array (section 6).
struct RandomStream {
  const uint32_t* seed;
  const uint32_t* origin;

  // The words of the block at (row, col), given in elements from the origin.
  NVFP4_INLINE PhiloxWords Row(int64_t row, int64_t col) const {
    return Philox(Block(origin[2], col), Line(origin[1], row), 0, origin[0], seed[0], seed[1]);
  }
  NVFP4_INLINE PhiloxWords Column(int64_t row, int64_t col) const {
    return Philox(Block(origin[1], row), Line(origin[2], col), 1, origin[0], seed[0], seed[1]);
  }

 private:
  static NVFP4_INLINE uint32_t Block(uint32_t origin, int64_t local) {
    return static_cast<uint32_t>((origin + local) / kBlock);
  }
  static NVFP4_INLINE uint32_t Line(uint32_t origin, int64_t local) { return origin + static_cast<uint32_t>(local); }
};

inline RandomStream StreamOf(const Job& job, int64_t batch) {
  return {job.seed + 2 * batch, job.origin + 3 * batch};
}

// A run of one row in 1x16 blocks.
template <typename Float>
NVFP4_KERNEL void QuantizeRun(const Job& job, int64_t batch, int64_t row, int64_t col, int64_t count) {
  float amax[kRun / kBlock], multipliers[kRun / kBlock], per_element[kRun];
  uint8_t scales[kRun / kBlock] = {}, codes[kRun] = {};
  const int64_t blocks = count / kBlock, scope = job.scopes.Of(batch, row);
  if (scope != Scopes::kTail) {
    const auto* x = job.At<Float>(batch, row, col);
    RowAmax<Float>(x, blocks, amax);
    const TensorScale tensor(job.amax[scope], job.call.mode);
    if (job.call.mode.search.present()) {
      SearchBlockScales<Float>(x, amax, blocks, tensor, job.call.mode.search, scales, multipliers);
    } else {
      BlockScales(amax, blocks, tensor, scales, multipliers);
    }
    Repeat(multipliers, blocks, per_element);
    if (!job.call.mode.row.stochastic) {
      NearestCodes<Float>(x, per_element, count, codes);
    } else {
      const RandomStream stream = StreamOf(job, batch);
      PhiloxWords random[kRun / kBlock];
      for (int64_t block = 0; block < blocks; ++block) random[block] = stream.Row(row, col + block * kBlock);
      StochasticCodes<Float>(x, per_element, reinterpret_cast<const uint8_t*>(random), count, codes);
    }
  }
  Pack(codes, count, job.row->CodesAt(batch, row, col));
  job.row->scales.Store(batch, row, col / kBlock, scales, blocks, job.row->scales.Whole());
}

constexpr int64_t kUnitStrips = kStripRows / kBlock;

// The codes of a strip, one a byte, with one scale per column or per 16x16 tile.
struct StripCodes {
  uint8_t codes[kBlock][kStripCols];
  uint8_t scales[kStripCols];
};

template <typename Float>
NVFP4_KERNEL void EncodeTiles(const typename Float::Word* x, int64_t stride, int64_t cols, const TensorScale& tensor,
                              const Search& search, StripCodes& out) {
  float amax[kStripCols / kBlock], multipliers[kStripCols / kBlock], per_element[kStripCols];
  TileAmax<Float>(x, stride, cols, amax);
  if (search.present()) {
    SearchTileScales<Float>(x, stride, amax, cols / kBlock, tensor, search, out.scales, multipliers);
  } else {
    BlockScales(amax, cols / kBlock, tensor, out.scales, multipliers);
  }
  Repeat(multipliers, cols / kBlock, per_element);
  for (int64_t r = 0; r < kBlock; ++r) NearestCodes<Float>(x + r * stride, per_element, cols, out.codes[r]);
}

// `random` is null for rounding to nearest.
template <typename Float>
NVFP4_KERNEL void EncodeColumns(const typename Float::Word* x, int64_t stride, int64_t cols, const TensorScale& tensor,
                                const Search& search, const uint8_t (*random)[kStripCols], StripCodes& out) {
  float amax[kStripCols], multipliers[kStripCols];
  ColumnAmax<Float>(x, stride, cols, amax);
  if (search.present()) {
    SearchColumnScales<Float>(x, stride, amax, cols, tensor, search, out.scales, multipliers);
  } else {
    BlockScales(amax, cols, tensor, out.scales, multipliers);
  }
  for (int64_t r = 0; r < kBlock; ++r) {
    if (random == nullptr) {
      NearestCodes<Float>(x + r * stride, multipliers, cols, out.codes[r]);
    } else {
      StochasticCodes<Float>(x + r * stride, multipliers, random[r], cols, out.codes[r]);
    }
  }
}

template <typename Float>
void EncodeStrip(const Job& job, int64_t batch, int64_t row, int64_t col, int64_t cols, StripCodes& out) {
  const auto* x = job.At<Float>(batch, row, col);
  const int64_t stride = job.call.cols, scope = job.scopes.Of(batch, row);
  if (scope == Scopes::kTail) {
    out = {};
    return;
  }
  const Search& search = job.call.mode.search;
  if (job.tile) return EncodeTiles<Float>(x, stride, cols, TensorScale(job.amax[scope], job.call.mode), search, out);

  const Direction& mode = job.call.mode.col;
  const TensorScale tensor(job.col_amax[scope], job.call.mode);
  uint8_t random[kBlock][kStripCols];
  if (mode.stochastic) {
    const RandomStream stream = StreamOf(job, batch);
    for (int64_t c = 0; c < cols; ++c) {
      PhiloxWords block = stream.Column(row, col + c);
      for (int64_t r = 0; r < kBlock; ++r) random[r][c] = static_cast<uint8_t>(block.word[r / 4] >> (r % 4 * 8));
    }
  }
  const auto* drawn = mode.stochastic ? random : nullptr;
  if (!mode.has_rht()) return EncodeColumns<Float>(x, stride, cols, tensor, search, drawn, out);
  if (job.call.mode.math == Math::kFast) {  // not rounded in between
    float transformed[kBlock][kStripCols];
    HadamardStrip<Float, Float32>(x, stride, cols, mode.rht, transformed);
    return EncodeColumns<Float32>(transformed[0], kStripCols, cols, tensor, search, drawn, out);
  }
  typename Float::Word transformed[kBlock][kStripCols];
  HadamardStrip<Float, Float>(x, stride, cols, mode.rht, transformed);
  EncodeColumns<Float>(transformed[0], kStripCols, cols, tensor, search, drawn, out);
}

// Packs the 16 codes of each column into one 8-byte word, one column every kUnitStrips words.
NVFP4_KERNEL inline void PackColumns(const uint8_t (*__restrict codes)[kStripCols], int64_t cols,
                              uint64_t* __restrict words) {
  for (int64_t c = 0; c < cols; ++c) {
    uint64_t word = 0;
    for (int64_t r = 0; r < kBlock; ++r) word |= static_cast<uint64_t>(codes[r][c]) << (4 * r);
    words[c * kUnitStrips] = word;
  }
}

// At most kUnitStrips strips of 16 rows, in columnwise 1x16 blocks, or in 16x16 tiles for either output or both.
template <typename Float>
void QuantizeStrips(const Job& job, int64_t batch, int64_t first_row, int64_t rows, int64_t col,
                                 int64_t cols) {
  uint64_t words[kStripCols * kUnitStrips];
  uint8_t column_scales[kStripCols][kUnitStrips];
  StripCodes strip_codes;
  const int64_t strips = rows / kBlock;

  for (int64_t strip = 0; strip < strips; ++strip) {
    const int64_t row = first_row + strip * kBlock;
    EncodeStrip<Float>(job, batch, row, col, cols, strip_codes);
    if (job.row && job.tile) {
      for (int64_t r = 0; r < kBlock; ++r) {
        Pack(strip_codes.codes[r], cols, job.row->CodesAt(batch, row + r, col));
        job.row->scales.Store(batch, row + r, col / kBlock, strip_codes.scales, cols / kBlock,
                              job.row->scales.Whole());
      }
    }
    if (job.col) {
      PackColumns(strip_codes.codes, cols, words + strip);
      for (int64_t c = 0; c < cols; ++c) column_scales[c][strip] = strip_codes.scales[job.tile ? c / kBlock : c];
    }
  }
  if (!job.col) return;
  const ScaleWriter::Region region = job.ColumnRegion(batch, first_row);
  for (int64_t c = 0; c < cols; ++c) {
    std::memcpy(job.col->CodesAt(batch, col + c, first_row), words + c * kUnitStrips, strips * sizeof(uint64_t));
    job.col->scales.Store(batch, col + c, first_row / kBlock, column_scales[c], strips, region);
  }
}

}  // namespace jax_nvfp4
