// The signature of every custom call, written once. `Context` is the one thing in which the two handlers of
// a call differ: ffi::ThreadPool for the CPU, the platform stream for CUDA. An implementation takes the
// context, then operands, results (as ffi::Result<ffi::AnyBuffer>) and attributes in the order bound here.
#pragma once

#include <cstdint>

#include "xla/ffi/api/ffi.h"

// Defines and exports (the libraries are built with hidden visibility) the handler of one call.
#define NVFP4_DEFINE_HANDLER(target, impl, ...)                                                     \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* target(XLA_FFI_CallFrame* frame); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(target, impl, __VA_ARGS__)

namespace jax_nvfp4 {

namespace ffi = xla::ffi;

template <typename Context>
auto AmaxSignature() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<ffi::AnyBuffer>()  // x
      .template Ret<ffi::AnyBuffer>()  // amax
      .template Attr<bool>("row_scope");
}

template <typename Context>
auto QuantizeSignature() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<ffi::AnyBuffer>()  // x
      .template Arg<ffi::AnyBuffer>()  // amax
      .template Ret<ffi::AnyBuffer>()  // codes
      .template Ret<ffi::AnyBuffer>()  // scales
      .template Attr<int32_t>("axis")
      .template Attr<bool>("tile")
      .template Attr<bool>("swizzled");
}

template <typename Context>
auto QuantizeStochasticSignature() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<ffi::AnyBuffer>()  // x
      .template Arg<ffi::AnyBuffer>()  // amax
      .template Arg<ffi::AnyBuffer>()  // seed
      .template Arg<ffi::AnyBuffer>()  // origin
      .template Ret<ffi::AnyBuffer>()  // codes
      .template Ret<ffi::AnyBuffer>()  // scales
      .template Attr<int32_t>("axis")
      .template Attr<bool>("swizzled");
}

template <typename Context>
auto QuantizeDualSignature() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<ffi::AnyBuffer>()  // x
      .template Arg<ffi::AnyBuffer>()  // amax
      .template Ret<ffi::AnyBuffer>()  // row codes
      .template Ret<ffi::AnyBuffer>()  // row scales
      .template Ret<ffi::AnyBuffer>()  // column codes
      .template Ret<ffi::AnyBuffer>()  // column scales
      .template Attr<bool>("swizzled");
}

template <typename Context>
auto DequantizeSignature() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<ffi::AnyBuffer>()   // codes
      .template Arg<ffi::AnyBuffer>()   // scales
      .template Arg<ffi::AnyBuffer>()   // amax
      .template Ret<ffi::AnyBuffer>();  // y
}

template <typename Context>
auto DecodeSignature() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<ffi::AnyBuffer>()   // codes
      .template Arg<ffi::AnyBuffer>()   // scales
      .template Ret<ffi::AnyBuffer>();  // y
}

template <typename Context>
auto QdqSignature() {
  return ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<ffi::AnyBuffer>()  // x
      .template Arg<ffi::AnyBuffer>()  // amax
      .template Ret<ffi::AnyBuffer>()  // y
      .template Attr<bool>("tile");
}

}  // namespace jax_nvfp4
