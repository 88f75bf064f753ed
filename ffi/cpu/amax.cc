// nvfp4_amax: the largest |x| of each matrix, row or group, propagating NaN, of x itself, of its random Hadamard
// transform along the rows, or of both.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "blocks.h"
#include "floats.h"
#include "groups.h"
#include "handler.h"
#include "parallel.h"
#include "rht.h"

namespace jax_nvfp4 {
namespace {

template <typename Float>
NVFP4_KERNEL float AmaxOf(const typename Float::Word* x, int64_t count) {
  decltype(MagnitudeBits(*x)) largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, MagnitudeBits(x[i]));
  return Amax<Float>(largest);
}

// Reduces the contiguous elements of each scope: first pieces of it, in parallel, then their results. Piece results
// are already canonical float32, whose magnitude bits order as those of x do.
template <typename Float>
void ReduceScopes(ffi::ThreadPool& pool, const Call& call, const Scopes& scopes, float* amax) {
  const auto* x = call.data<const typename Float::Word>(Role::kX);
  int64_t longest = 1;
  for (int64_t scope = 0; scope < call.scopes(); ++scope) longest = std::max(longest, scopes.Rows(scope) * call.cols);
  const int64_t pieces = (longest + kChunkElements - 1) / kChunkElements;
  std::vector<float> partial(call.scopes() * pieces);
  ParallelFor(pool, call.scopes() * pieces, std::min(longest, kChunkElements), [&](int64_t piece) {
    const int64_t scope = piece / pieces, start = piece % pieces * kChunkElements;
    const int64_t count = std::min(kChunkElements, scopes.Rows(scope) * call.cols - start);
    const auto* first = x + (scopes.Batch(scope) * call.rows + scopes.FirstRow(scope)) * call.cols;
    if (count > 0) partial[piece] = AmaxOf<Float>(first + start, count);
  });
  for (int64_t scope = 0; scope < call.scopes(); ++scope) {
    amax[scope] = pieces == 1 ? partial[scope] : AmaxOf<Float32>(&partial[scope * pieces], pieces);
  }
}

template <typename Float>
NVFP4_KERNEL float HadamardAmax(const typename Float::Word* x, int64_t stride, int64_t cols, uint32_t signs) {
  typename Float::Word transformed[kBlock][kStripCols];
  HadamardStrip<Float, Float>(x, stride, cols, signs, transformed);
  decltype(MagnitudeBits(*x)) largest = 0;
  for (int64_t r = 0; r < kBlock; ++r) {
    for (int64_t c = 0; c < cols; ++c) largest = std::max(largest, MagnitudeBits(transformed[r][c]));
  }
  return Amax<Float>(largest);
}

// The same after the transform, strip by strip; a strip lies in one scope.
template <typename Float>
void ReduceTransformed(ffi::ThreadPool& pool, const Call& call, const Scopes& scopes, float* amax) {
  const auto* x = call.data<const typename Float::Word>(Role::kX);
  const int64_t strips = call.rows / kBlock, across = (call.cols + kStripCols - 1) / kStripCols;
  std::vector<float> partial(call.batch * strips * across);
  ParallelFor(pool, call.batch * strips * across, kBlock * std::min(call.cols, kStripCols), [&](int64_t unit) {
    const int64_t strip = unit / across, col = unit % across * kStripCols;
    partial[unit] = HadamardAmax<Float>(x + strip * kBlock * call.cols + col, call.cols,
                                        std::min(kStripCols, call.cols - col), call.mode.col.rht);
  });
  std::fill_n(amax, call.scopes(), 0.0f);
  for (int64_t strip = 0; strip < call.batch * strips; ++strip) {
    const int64_t scope = scopes.Of(strip / strips, strip % strips * kBlock);
    if (scope == Scopes::kTail) continue;
    const float found[] = {amax[scope], AmaxOf<Float32>(&partial[strip * across], across)};
    amax[scope] = AmaxOf<Float32>(found, 2);
  }
}

ffi::Error RunAmax(ffi::ThreadPool& pool, const Call& call) {
  const bool transformed = call.mode.col.present, plain = !transformed || call.mode.row.present;
  float* amax = call.data<float>(Role::kAmax);
  float* col_amax = plain ? call.data<float>(Role::kColAmax) : amax;
  if (call.size() == 0) {
    std::fill_n(amax, call.scopes(), 0.0f);
    if (transformed) std::fill_n(col_amax, call.scopes(), 0.0f);
    return ffi::Error::Success();
  }
  const Scopes scopes(call);
  if (ffi::Error error = scopes.Check(); error.failure()) return error;
  DispatchFloat(call.dtype, [&](auto type) {
    using Float = decltype(type);
    if (plain) ReduceScopes<Float>(pool, call, scopes, amax);
    if (transformed) ReduceTransformed<Float>(pool, call, scopes, col_amax);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jax_nvfp4

NVFP4_DEFINE_CPU_HANDLER(nvfp4_amax, kAmax, RunAmax);
