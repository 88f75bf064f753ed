// One call of nvfp4_quantize, where its outputs go, and how it is split over threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "blocks.h"
#include "groups.h"
#include "pages.h"
#include "parallel.h"
#include "scale_writer.h"

namespace jax_nvfp4 {

// A quantized operand: `rows` rows of `cols` elements as it is laid out, so columnwise output has both swapped.
struct Output {
  uint8_t* codes;
  int64_t rows;
  int64_t cols;
  int64_t per_byte;
  ScaleWriter scales;

  Output(const Call& call, Role codes, Role scales, int64_t rows, int64_t cols, bool swizzled)
      : codes(static_cast<uint8_t*>(ResultData(call.buffer(codes)))),
        rows(rows),
        cols(cols),
        per_byte(call.mode.facts().codes_per_byte),
        scales(call.data(scales), call.batch, rows, cols / call.mode.facts().block, swizzled) {}

  NVFP4_INLINE uint8_t* CodesAt(int64_t batch, int64_t row, int64_t col) const {
    return codes + ((batch * rows + row) * cols + col) / per_byte;
  }
};

// A call, and where its outputs go.
struct Job {
  const Call& call;
  const Scopes scopes;
  const bool tile;
  const void* x;
  const float* amax;
  const float* col_amax;
  const uint32_t* seed;  // null unless a direction is stochastic
  const uint32_t* origin;
  std::optional<Output> row;
  std::optional<Output> col;

  explicit Job(const Call& call)
      : call(call),
        scopes(call),
        tile(call.mode.tile()),
        x(call.data(Role::kX)),
        amax(call.data<const float>(Role::kAmax)),
        col_amax(call.has(Role::kColAmax) ? call.data<const float>(Role::kColAmax) : amax),
        seed(call.data<const uint32_t>(Role::kSeed)),
        origin(call.data<const uint32_t>(Role::kOrigin)) {
    const Mode& mode = call.mode;
    if (mode.row.present) row.emplace(call, Role::kRowCodes, Role::kRowScales, call.rows, call.cols, mode.row.swizzled);
    if (mode.col.present) col.emplace(call, Role::kColCodes, Role::kColScales, call.cols, call.rows, mode.col.swizzled);
  }

  template <typename Float>
  NVFP4_INLINE const typename Float::Word* At(int64_t batch, int64_t r, int64_t c) const {
    return static_cast<const typename Float::Word*>(x) + (batch * call.rows + r) * call.cols + c;
  }

  // The columnwise scales that are swizzled together with those of a row of x.
  ScaleWriter::Region ColumnRegion(int64_t batch, int64_t row) const {
    if (!call.mode.grouped()) return col->scales.Whole();
    const int64_t scope = scopes.Of(batch, row);
    const int64_t block = call.mode.facts().block;
    if (scope == Scopes::kTail) return col->scales.From(scopes.End(batch) / block);
    return {scopes.FirstRow(scope) / block, scopes.Rows(scope) / block};
  }
};

// Calls the two bodies of a format for every unit of work. A unit is a run of one row, or, where any block spans rows,
// kStripRows rows by kStripCols columns.
template <typename Run, typename Strips>
void ForEachUnit(ffi::ThreadPool& pool, const Job& job, const Run& run, const Strips& strips) {
  const Call& call = job.call;
  const bool spans_rows = job.tile || job.col;
  const int64_t unit_rows = spans_rows ? kStripRows : 1, unit_cols = spans_rows ? kStripCols : kRun;
  const int64_t down = (call.rows + unit_rows - 1) / unit_rows, across = (call.cols + unit_cols - 1) / unit_cols;
  const int64_t unit_elements = std::min(unit_rows, call.rows) * std::min(unit_cols, call.cols);
  ParallelFor(pool, call.batch * down * across, unit_elements, [&](int64_t unit) {
    const int64_t batch = unit / across / down;
    const int64_t row = unit / across % down * unit_rows, col = unit % across * unit_cols;
    const int64_t rows = std::min(unit_rows, call.rows - row), cols = std::min(unit_cols, call.cols - col);
    if (!spans_rows) return run(batch, row, col, cols);
    // The blocks of single rows share the read: the unit is in the cache.
    if (job.row && !job.tile) {
      for (int64_t r = row; r < row + rows; ++r) run(batch, r, col, cols);
    }
    strips(batch, row, rows, col, cols);
  });
}

}  // namespace jax_nvfp4
