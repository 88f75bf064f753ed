// How the handler of a verb is defined on the CPU.
#pragma once

#include <exception>

#include "call.h"

namespace jax_nvfp4 {

// An exception, such as one of a failed allocation, must not cross XLA's C interface.
template <Verb verb, ffi::Error (*run)(ffi::ThreadPool&, const Call&)>
ffi::Error HandleOnCpu(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets, Mode mode) {
  try {
    ffi::ErrorOr<Call> call = Call::Parse(verb, mode, args, rets);
    return call ? run(pool, *call) : call.error();
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, error.what());
  }
}

}  // namespace jax_nvfp4

// Defines the handler `target` of a verb: `run` gets the thread pool and the checked call.
#define NVFP4_DEFINE_CPU_HANDLER(target, verb, run)                                                \
  NVFP4_DEFINE_HANDLER(target, (jax_nvfp4::HandleOnCpu<jax_nvfp4::Verb::verb, jax_nvfp4::run>), \
                       jax_nvfp4::Signature<xla::ffi::ThreadPool>())
