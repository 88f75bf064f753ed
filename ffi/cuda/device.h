// The compiled kernels as a handler sees them: which variant the current device runs, loaded on first use.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels.h"
#include "operands.h"
#include "signatures.h"
#include "xla/ffi/api/ffi.h"

namespace jax_nvfp4::cuda {

using Stream = ffi::PlatformStream<cudaStream_t>;

// The variant of `kernel` for the device that is current in the calling thread. The first use of a variant on a
// device loads it, under a lock, which is legal while any thread captures a graph. Fails where the library holds no
// kernels for the device.
ffi::ErrorOr<const Variant*> FindVariant(Kernel kernel, ffi::DataType dtype, int flags = 0);

// Success, or an internal error that names what failed.
ffi::Error CheckCuda(const char* what, cudaError_t status);

// A buffer as the kernels take it, in words of its own element type.
inline Tensor Flat(const ffi::AnyBuffer& buffer) {
  return {buffer.untyped_data(), static_cast<int64_t>(buffer.element_count())};
}

}  // namespace jax_nvfp4::cuda

// Defines the handler `target`: `implementation` takes the stream, then what `signature` binds. Handlers allocate
// nothing, wait for nothing and read no device memory, so XLA may capture them into a graph.
#define NVFP4_DEFINE_CUDA_HANDLER(target, implementation, signature) \
  NVFP4_DEFINE_HANDLER(target, implementation, signature<jax_nvfp4::cuda::Stream>(), \
                       {xla::ffi::Traits::kCmdBufferCompatible})
