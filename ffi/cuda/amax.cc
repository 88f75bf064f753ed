// nvfp4_amax on CUDA. Of x: one warp per matrix or row, or several CTAs per matrix where there are few long ones. Of the
// Hadamard transform: one CTA per tile.
#include <algorithm>

#include "kernels.h"

namespace jax_nvfp4::cuda {
namespace {

constexpr int64_t kShortBytes = 16 << 10;  // a segment that one warp reads in time
constexpr int64_t kManySegments = 2048;    // enough warps for a whole GPU
constexpr int64_t kVectorBytes = 16;
constexpr int64_t kLoopVectors = 2048;  // read by a CTA in one iteration
constexpr int64_t kManyCtas = 1024;     // enough for a whole GPU; more would cost more atomics
constexpr int64_t kMaxChunk = 8 * kLoopVectors;

// 16-byte vectors per CTA.
int64_t ChunkFor(int64_t bytes) {
  return std::clamp(RoundUp(bytes / kVectorBytes / kManyCtas, kLoopVectors), kLoopVectors, kMaxChunk);
}

ffi::Error Clear(cudaStream_t stream, const ffi::AnyBuffer& amax) {
  return CheckCuda("clearing amax", cudaMemsetAsync(amax.untyped_data(), 0, amax.size_bytes(), stream));
}

ffi::Error AmaxOfColumns(cudaStream_t stream, const Call& call, Role amax) {
  Mode mode = call.mode;
  mode.row = {};
  if (ffi::Error error = Clear(stream, call.buffer(amax)); error.failure() || call.size() == 0) return error;
  return launch_amax_columns(stream, call.dtype, mode, Flat(call, Role::kX), Flat(call, amax), call.batch, call.rows,
                             call.cols, mode.col.rht);
}

ffi::Error AmaxOfX(cudaStream_t stream, const Call& call) {
  Mode mode = call.mode;
  mode.row = mode.col = {};
  const int64_t segments = call.scopes();
  if (segments == 0) return ffi::Error::Success();

  const int64_t length = call.size() / segments, bytes = length * ffi::ByteWidth(call.dtype);
  const bool split = bytes > kShortBytes && segments < kManySegments;
  if (split || length == 0) {
    if (ffi::Error error = Clear(stream, call.buffer(Role::kAmax)); error.failure()) return error;
  }
  if (length == 0) return ffi::Error::Success();
  return launch_amax(stream, call.dtype, mode, Flat(call, Role::kX), Flat(call, Role::kAmax), segments, length,
                     split ? ChunkFor(segments * bytes) : 0);
}

ffi::Error RunAmax(cudaStream_t stream, const Call& call) {
  const bool transformed = call.mode.col.present, plain = !transformed || call.mode.row.present;
  ffi::Error error = plain ? AmaxOfX(stream, call) : ffi::Error::Success();
  if (error.failure() || !transformed) return error;
  return AmaxOfColumns(stream, call, plain ? Role::kColAmax : Role::kAmax);
}

}  // namespace
}  // namespace jax_nvfp4::cuda

NVFP4_DEFINE_CUDA_HANDLER(nvfp4_amax, kAmax, RunAmax);
