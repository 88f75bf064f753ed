// nvfp4_dequantize and nvfp4_decode: codes and linear block scales back to floats, with and without the
// tensor scale (docs/numerics.md section 2, steps 7 and 8).
#include <cstdint>

#include "blocks.h"
#include "operands.h"
#include "pages.h"
#include "signatures.h"

namespace jax_nvfp4 {
namespace {

struct Packed {
  const uint8_t* codes;
  const uint8_t* scales;
};

template <typename Float>
NVFP4_KERNEL void DequantizeRun(Packed in, const float* amax, int64_t start, int64_t count, typename Float::Word* y) {
  uint8_t codes[kRun];
  float factors[kRun / kBlock], per_element[kRun];
  const int64_t blocks = count / kBlock;
  const uint8_t* scales = in.scales + start / kBlock;
  if (amax != nullptr) {
    DequantFactors(scales, blocks, *amax, factors);
  } else {
    for (int64_t block = 0; block < blocks; ++block) factors[block] = E4M3Value(scales[block]);
  }
  Repeat(factors, blocks, per_element);
  Unpack(in.codes + start / 2, count, codes);
  DequantizeCodes<Float>(codes, per_element, count, y + start);
}

// `amax` is null for the values without their tensor scale.
void Run(ffi::ThreadPool& pool, const Operand& y, const ffi::AnyBuffer& codes, const ffi::AnyBuffer& scales,
         const float* amax, void* out) {
  if (y.size() == 0) return;
  const Packed in{static_cast<const uint8_t*>(codes.untyped_data()),
                  static_cast<const uint8_t*>(scales.untyped_data())};
  DispatchFloat(y.dtype, [&](auto type) {
    using Float = decltype(type);
    auto* words = static_cast<typename Float::Word*>(out);
    ForEachRun(pool, y, [&](int64_t index, int64_t start, int64_t count) {
      DequantizeRun<Float>(in, amax ? amax + index : nullptr, start, count, words);
    });
  });
}

ffi::Error Dequantize(ffi::ThreadPool pool, ffi::AnyBuffer codes, ffi::AnyBuffer scales, ffi::AnyBuffer amax,
                      ffi::Result<ffi::AnyBuffer> y) {
  ffi::ErrorOr<Operand> operand = ParseDequantize(codes, scales, amax, *y);
  if (!operand) return operand.error();
  Run(pool, *operand, codes, scales, static_cast<const float*>(amax.untyped_data()), ResultData(*y));
  return ffi::Error::Success();
}

ffi::Error Decode(ffi::ThreadPool pool, ffi::AnyBuffer codes, ffi::AnyBuffer scales, ffi::Result<ffi::AnyBuffer> y) {
  ffi::ErrorOr<Operand> operand = ParseDecode(codes, scales, *y);
  if (!operand) return operand.error();
  Run(pool, *operand, codes, scales, nullptr, ResultData(*y));
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jax_nvfp4

NVFP4_DEFINE_HANDLER(nvfp4_dequantize, jax_nvfp4::Dequantize,
                     jax_nvfp4::DequantizeSignature<xla::ffi::ThreadPool>());
NVFP4_DEFINE_HANDLER(nvfp4_decode, jax_nvfp4::Decode, jax_nvfp4::DecodeSignature<xla::ffi::ThreadPool>());
