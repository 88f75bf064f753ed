// nvfp4_dequantize and nvfp4_decode on CUDA.
#include "kernels.h"

namespace jax_nvfp4::cuda {
namespace {

ffi::Error RunDequantize(cudaStream_t stream, const Call& call) {
  if (call.size() == 0) return ffi::Error::Success();
  return launch_dequantize(stream, call.dtype, call.mode, Flat(call, Role::kRowCodes), Flat(call, Role::kRowScales),
                           Flat(call, Role::kAmax), Flat(call, Role::kY), call.batch, call.rows, call.cols,
                           call.mode.row_scope(), call.mode.emax);
}

ffi::Error RunDecode(cudaStream_t stream, const Call& call) {
  if (call.size() == 0) return ffi::Error::Success();
  return launch_decode(stream, call.dtype, call.mode, Flat(call, Role::kRowCodes), Flat(call, Role::kRowScales),
                       Flat(call, Role::kY), call.batch, call.rows, call.cols);
}

}  // namespace
}  // namespace jax_nvfp4::cuda

NVFP4_DEFINE_CUDA_HANDLER(nvfp4_dequantize, kDequantize, RunDequantize);
NVFP4_DEFINE_CUDA_HANDLER(nvfp4_decode, kDecode, RunDecode);
