// nvfp4_amax on CUDA: one warp per matrix or row, or several CTAs per matrix where there are few long ones.
#include <algorithm>

#include "device.h"

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

ffi::Error Amax(cudaStream_t stream, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> amax, bool row_scope) {
  ffi::ErrorOr<Operand> operand = ParseAmax(x, row_scope, *amax);
  if (!operand) return operand.error();
  int64_t segments = operand->batch * (row_scope ? operand->rows : 1);
  int64_t length = (row_scope ? 1 : operand->rows) * operand->cols;
  if (segments == 0) return ffi::Error::Success();

  int64_t bytes = length * ffi::ByteWidth(operand->dtype);
  bool split = bytes > kShortBytes && segments < kManySegments;
  if (split || length == 0) {
    cudaError_t status = cudaMemsetAsync(amax->untyped_data(), 0, amax->size_bytes(), stream);
    if (status != cudaSuccess) return CheckCuda("clearing amax", status);
  }
  if (length == 0) return ffi::Error::Success();

  ffi::ErrorOr<const Variant*> variant = FindVariant(Kernel::amax, operand->dtype, split ? kSplit : 0);
  if (!variant) return variant.error();
  return CheckCuda("amax", launch_amax(**variant, stream, Flat(x), Flat(*amax), segments, length,
                                       ChunkFor(segments * bytes)));
}

}  // namespace
}  // namespace jax_nvfp4::cuda

NVFP4_DEFINE_CUDA_HANDLER(nvfp4_amax, jax_nvfp4::cuda::Amax, jax_nvfp4::AmaxSignature);
