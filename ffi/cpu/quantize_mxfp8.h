// MXFP8 runs and strips: elements and block scales along rows, along columns, or both (docs/numerics.md section 8).
#pragma once

#include <cstdint>
#include <cstring>

#include "blocks.h"
#include "job.h"
#include "mxfp8.h"

namespace jax_nvfp4 {

constexpr int64_t kMxStrips = kStripRows / kMxBlock;

// A run of one row. Rows past the last group are quantized as any other.
template <typename Float, typename Element>
NVFP4_KERNEL void QuantizeMxRun(const Job& job, int64_t batch, int64_t row, int64_t col, int64_t count) {
  float amax[kRun / kMxBlock], multipliers[kRun / kMxBlock], per_element[kRun];
  uint8_t scales[kRun / kMxBlock];
  const int64_t blocks = count / kMxBlock;
  const auto* x = job.At<Float>(batch, row, col);
  RowAmax<Float, kMxBlock>(x, blocks, amax);
  MxScales<Element>(amax, blocks, job.call.mode.scale_floor, scales, multipliers);
  Repeat<kMxBlock>(multipliers, blocks, per_element);
  uint8_t* codes = job.row->CodesAt(batch, row, col);
  for (int64_t i = 0; i < count; ++i) codes[i] = Element::Encode(Float::Widen(x[i]) * per_element[i]);
  job.row->scales.Store(batch, row, col / kMxBlock, scales, blocks, job.row->scales.Whole());
}

// At most kMxStrips strips of 32 rows, each column of which is a block.
template <typename Float, typename Element>
NVFP4_KERNEL void QuantizeMxStrips(const Job& job, int64_t batch, int64_t first_row, int64_t rows, int64_t col,
                                   int64_t cols) {
  uint8_t codes[kStripCols][kStripRows], column_scales[kStripCols][kMxStrips], scales[kStripCols];
  float amax[kStripCols], multipliers[kStripCols];
  const int64_t stride = job.call.cols, strips = rows / kMxBlock;
  for (int64_t strip = 0; strip < strips; ++strip) {
    const int64_t row = first_row + strip * kMxBlock;
    const auto* x = job.At<Float>(batch, row, col);
    ColumnAmax<Float, kMxBlock>(x, stride, cols, amax);
    MxScales<Element>(amax, cols, job.call.mode.scale_floor, scales, multipliers);
    for (int64_t r = 0; r < kMxBlock; ++r) {
      uint8_t encoded[kStripCols];
      for (int64_t c = 0; c < cols; ++c) encoded[c] = Element::Encode(Float::Widen(x[r * stride + c]) * multipliers[c]);
      for (int64_t c = 0; c < cols; ++c) codes[c][strip * kMxBlock + r] = encoded[c];
    }
    const bool is_tail = job.scopes.Of(batch, row) == Scopes::kTail;
    for (int64_t c = 0; c < cols; ++c) column_scales[c][strip] = is_tail ? 0 : scales[c];
  }
  const ScaleWriter::Region region = job.ColumnRegion(batch, first_row);
  for (int64_t c = 0; c < cols; ++c) {
    std::memcpy(job.col->CodesAt(batch, col + c, first_row), codes[c], rows);
    job.col->scales.Store(batch, col + c, first_row / kMxBlock, column_scales[c], strips, region);
  }
}

}  // namespace jax_nvfp4
