// The primitives alone, for exhaustive tests on a GPU: float32 values to E2M1 codes or E4M3 bytes, one per byte, and
// rows of four counter and two key words to the four words of their Philox draw.
#include "kernels.h"

namespace jax_nvfp4::cuda {
namespace {

enum What : int32_t { kE2m1, kE4m3, kPhilox };  // as in jax_nvfp4/kernels/selftest.py

template <What what>
ffi::Error Run(cudaStream_t stream, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out) {
  const int64_t words = what == kPhilox ? 6 : 1, count = x.element_count() / words;
  ffi::Error error = what == kPhilox ? CheckBuffer("x", x, ffi::DataType::U32, {count, words})
                                     : CheckBuffer("x", x, ffi::DataType::F32, {count});
  if (error.failure()) return error;
  error = what == kPhilox ? CheckBuffer("result", *out, ffi::DataType::U32, {count, 4})
                          : CheckBuffer("result", *out, ffi::DataType::U8, {count});
  if (error.failure() || count == 0) return error;
  return launch_selftest(stream, ffi::DataType::F32, kNoMode, Flat(x), Flat(*out), count, what);
}

auto Signature() { return ffi::Ffi::Bind().Ctx<Stream>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>(); }

}  // namespace
}  // namespace jax_nvfp4::cuda

NVFP4_DEFINE_HANDLER(nvfp4_selftest_e2m1, jax_nvfp4::cuda::Run<jax_nvfp4::cuda::kE2m1>, jax_nvfp4::cuda::Signature());
NVFP4_DEFINE_HANDLER(nvfp4_selftest_e4m3, jax_nvfp4::cuda::Run<jax_nvfp4::cuda::kE4m3>, jax_nvfp4::cuda::Signature());
NVFP4_DEFINE_HANDLER(nvfp4_selftest_philox, jax_nvfp4::cuda::Run<jax_nvfp4::cuda::kPhilox>,
                     jax_nvfp4::cuda::Signature());
