// nvfp4_amax: the largest |x| of each matrix or of each row, propagating NaN.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "floats.h"
#include "handler.h"
#include "parallel.h"

namespace jax_nvfp4 {
namespace {

template <typename Float>
NVFP4_KERNEL float AmaxOf(const typename Float::Word* x, int64_t count) {
  decltype(MagnitudeBits(*x)) largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, MagnitudeBits(x[i]));
  return Amax<Float>(largest);
}

// Reduces each of `scopes` contiguous runs of `size` elements: first pieces of a run, in parallel, then their
// results. Piece results are already canonical float32, whose magnitude bits order as those of x do.
template <typename Float>
void ReduceScopes(ffi::ThreadPool& pool, const typename Float::Word* x, int64_t scopes, int64_t size, float* amax) {
  const int64_t pieces = (size + kChunkElements - 1) / kChunkElements;
  std::vector<float> partial(scopes * pieces);
  ParallelFor(pool, scopes * pieces, std::min(size, kChunkElements), [&](int64_t piece) {
    const int64_t start = piece % pieces * kChunkElements;
    partial[piece] = AmaxOf<Float>(x + piece / pieces * size + start, std::min(kChunkElements, size - start));
  });
  for (int64_t scope = 0; scope < scopes; ++scope) {
    amax[scope] = pieces == 1 ? partial[scope] : AmaxOf<Float32>(&partial[scope * pieces], pieces);
  }
}

ffi::Error RunAmax(ffi::ThreadPool& pool, const Call& call) {
  float* amax = call.data<float>(Role::kAmax);
  if (call.size() == 0) {
    std::fill_n(amax, call.scopes(), 0.0f);
    return ffi::Error::Success();
  }
  DispatchFloat(call.dtype, [&](auto type) {
    using Float = decltype(type);
    ReduceScopes<Float>(pool, call.data<const typename Float::Word>(Role::kX), call.scopes(),
                        call.size() / call.scopes(), amax);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jax_nvfp4

NVFP4_DEFINE_CPU_HANDLER(nvfp4_amax, kAmax, RunAmax);
