// nvfp4_qdq on CUDA.
#include "device.h"

namespace jax_nvfp4::cuda {
namespace {

ffi::Error Qdq(cudaStream_t stream, ffi::AnyBuffer x, ffi::AnyBuffer amax, ffi::Result<ffi::AnyBuffer> y,
               bool tile) {
  ffi::ErrorOr<Operand> operand = ParseQdq(x, amax, tile, *y);
  if (!operand) return operand.error();
  if (operand->size() == 0) return ffi::Error::Success();
  ffi::ErrorOr<const Variant*> variant = FindVariant(Kernel::qdq, operand->dtype, tile ? kTile : 0);
  if (!variant) return variant.error();
  return CheckCuda("qdq", launch_qdq(**variant, stream, Flat(x), Flat(amax), Flat(*y), operand->batch, operand->rows,
                                     operand->cols, operand->row_scope));
}

}  // namespace
}  // namespace jax_nvfp4::cuda

NVFP4_DEFINE_CUDA_HANDLER(nvfp4_qdq, jax_nvfp4::cuda::Qdq, jax_nvfp4::QdqSignature);
