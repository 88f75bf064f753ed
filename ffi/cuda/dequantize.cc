// nvfp4_dequantize and nvfp4_decode on CUDA.
#include "device.h"

namespace jax_nvfp4::cuda {
namespace {

ffi::Error Launch(cudaStream_t stream, const Operand& operand, int flags, Tensor codes, Tensor scales, Tensor amax,
                  Tensor y) {
  if (operand.size() == 0) return ffi::Error::Success();
  ffi::ErrorOr<const Variant*> variant = FindVariant(Kernel::dequantize, operand.dtype, flags);
  if (!variant) return variant.error();
  return CheckCuda("dequantize", launch_dequantize(**variant, stream, codes, scales, amax, y, operand.batch,
                                                   operand.rows, operand.cols, operand.row_scope));
}

ffi::Error Dequantize(cudaStream_t stream, ffi::AnyBuffer codes, ffi::AnyBuffer scales, ffi::AnyBuffer amax,
                      ffi::Result<ffi::AnyBuffer> y) {
  ffi::ErrorOr<Operand> operand = ParseDequantize(codes, scales, amax, *y);
  if (!operand) return operand.error();
  return Launch(stream, *operand, 0, Flat(codes), Flat(scales), Flat(amax), Flat(*y));
}

ffi::Error Decode(cudaStream_t stream, ffi::AnyBuffer codes, ffi::AnyBuffer scales, ffi::Result<ffi::AnyBuffer> y) {
  ffi::ErrorOr<Operand> operand = ParseDecode(codes, scales, *y);
  if (!operand) return operand.error();
  return Launch(stream, *operand, kUnscaled, Flat(codes), Flat(scales), Tensor{nullptr, 0}, Flat(*y));
}

}  // namespace
}  // namespace jax_nvfp4::cuda

NVFP4_DEFINE_CUDA_HANDLER(nvfp4_dequantize, jax_nvfp4::cuda::Dequantize, jax_nvfp4::DequantizeSignature);
NVFP4_DEFINE_CUDA_HANDLER(nvfp4_decode, jax_nvfp4::cuda::Decode, jax_nvfp4::DecodeSignature);
