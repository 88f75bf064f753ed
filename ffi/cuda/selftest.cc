// The primitives alone, for exhaustive tests on a GPU: float32 values to E2M1 codes or E4M3 bytes, one per byte, and
// rows of four counter and two key words to the four words of their Philox draw.
#include "device.h"

namespace jax_nvfp4::cuda {
namespace {

ffi::Error Launch(cudaStream_t stream, int flags, const ffi::AnyBuffer& x, const ffi::AnyBuffer& out) {
  int64_t count = x.dimensions()[0];
  if (count == 0) return ffi::Error::Success();
  ffi::ErrorOr<const Variant*> variant = FindVariant(Kernel::selftest, ffi::DataType::F32, flags);
  if (!variant) return variant.error();
  return CheckCuda("selftest", launch_selftest(**variant, stream, Flat(x), Flat(out), count));
}

template <int kFlags>
ffi::Error Convert(cudaStream_t stream, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out) {
  Dims dims = {static_cast<int64_t>(x.element_count())};
  ffi::Error error = FirstOf(CheckBuffer("x", x, ffi::DataType::F32, dims),
                             CheckBuffer("result", *out, ffi::DataType::U8, dims));
  return error.failure() ? error : Launch(stream, kFlags, x, *out);
}

ffi::Error Philox(cudaStream_t stream, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out) {
  int64_t draws = x.element_count() / 6;
  ffi::Error error = FirstOf(CheckBuffer("x", x, ffi::DataType::U32, {draws, 6}),
                             CheckBuffer("result", *out, ffi::DataType::U32, {draws, 4}));
  return error.failure() ? error : Launch(stream, 0, x, *out);
}

auto Signature() { return ffi::Ffi::Bind().Ctx<Stream>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>(); }

}  // namespace
}  // namespace jax_nvfp4::cuda

NVFP4_DEFINE_HANDLER(nvfp4_selftest_e2m1, jax_nvfp4::cuda::Convert<jax_nvfp4::cuda::kE2m1Codes>,
                     jax_nvfp4::cuda::Signature());
NVFP4_DEFINE_HANDLER(nvfp4_selftest_e4m3, jax_nvfp4::cuda::Convert<jax_nvfp4::cuda::kE4m3Bytes>,
                     jax_nvfp4::cuda::Signature());
NVFP4_DEFINE_HANDLER(nvfp4_selftest_philox, jax_nvfp4::cuda::Philox, jax_nvfp4::cuda::Signature());
