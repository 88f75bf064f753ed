// nvfp4_qdq on CUDA.
#include "kernels.h"

namespace jax_nvfp4::cuda {
namespace {

ffi::Error RunQdq(cudaStream_t stream, const Call& call) {
  if (call.size() == 0) return ffi::Error::Success();
  return launch_qdq(stream, call.dtype, call.mode, Flat(call, Role::kX), Flat(call, Role::kAmax), Flat(call, Role::kY),
                    call.batch, call.rows, call.cols, call.mode.row_scope(), call.mode.emax);
}

}  // namespace
}  // namespace jax_nvfp4::cuda

NVFP4_DEFINE_CUDA_HANDLER(nvfp4_qdq, kQdq, RunQdq);
