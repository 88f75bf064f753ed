// How a handler is defined on CUDA, and how it launches a compiled kernel: through the functions of the generated
// kernels.h, one per kernel, which take the stream, the dtype of x or y, what the call is told, and the kernel's
// arguments.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <exception>

#include "call.h"

namespace jax_nvfp4::cuda {

using Stream = ffi::PlatformStream<cudaStream_t>;

// A flat buffer, as the compiled kernels take it: `size` counts storage words.
struct Tensor {
  void* data;
  int64_t size;
};

inline Tensor Flat(const ffi::AnyBuffer& buffer) {
  return {buffer.untyped_data(), static_cast<int64_t>(buffer.element_count())};
}

// Of no words where the call has no such operand or result.
inline Tensor Flat(const Call& call, Role role) { return call.has(role) ? Flat(call.buffer(role)) : Tensor{nullptr, 0}; }

enum class Kernel : int;  // generated: the kernels of jax_nvfp4/kernels/variants.py

// A row of that table, for one GPU family. The functions are null where this build was not asked for it.
struct Variant {
  const char* name;
  const char* arch;
  Kernel kernel;
  ffi::DataType dtype;
  Mode mode;
  void (*init)(void**);
  void (*load)(void**);
  void (*launch)(void**, int32_t);
};

// Which family runs the devices of a compute capability.
struct Family {
  int major, minor;
  const char* arch;
};

// Generated in kernels.cc.
extern const Variant kVariants[];
extern const size_t kVariantCount;
extern const Family kFamilies[];
extern const size_t kFamilyCount;
extern const char* const kKernelNames[];
extern const char kArchs[];  // those of this build, comma separated

// Launches the variant of `kernel` for a dtype, a mode and the current device, with `count` arguments, the last one
// being `status`. The first use of a variant on a device loads it, under a lock, which is legal while any thread
// captures a graph. Fails where this build has no such variant.
ffi::Error Launch(Kernel kernel, ffi::DataType dtype, const Mode& mode, void** arguments, int32_t count,
                  const int32_t& status);

// Success, or an internal error that names what failed.
ffi::Error CheckCuda(const char* what, cudaError_t status);

// An exception, such as one of a failed allocation, must not cross XLA's C interface.
template <Verb verb, ffi::Error (*run)(cudaStream_t, const Call&)>
ffi::Error HandleOnCuda(cudaStream_t stream, ffi::RemainingArgs args, ffi::RemainingRets rets, Mode mode) {
  try {
    ffi::ErrorOr<Call> call = Call::Parse(verb, mode, args, rets);
    return call ? run(stream, *call) : call.error();
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, error.what());
  }
}

}  // namespace jax_nvfp4::cuda

// Defines the handler `target` of a verb: `run` gets the stream and the checked call. Handlers allocate no device
// memory, wait for nothing and read none, so XLA may capture them into a graph.
#define NVFP4_DEFINE_CUDA_HANDLER(target, verb, run)                                                         \
  NVFP4_DEFINE_HANDLER(target, (jax_nvfp4::cuda::HandleOnCuda<jax_nvfp4::Verb::verb, jax_nvfp4::cuda::run>), \
                       jax_nvfp4::Signature<jax_nvfp4::cuda::Stream>(), {xla::ffi::Traits::kCmdBufferCompatible})
