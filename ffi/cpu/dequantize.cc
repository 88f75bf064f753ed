// nvfp4_dequantize and nvfp4_decode: codes and linear block scales back to floats, with and without the
// tensor scale (docs/numerics.md section 2, steps 7 and 8).
#include <cstdint>

#include "blocks.h"
#include "handler.h"
#include "mxfp8.h"
#include "pages.h"

namespace jax_nvfp4 {
namespace {

struct Packed {
  const uint8_t* codes;
  const uint8_t* scales;
};

template <typename Float>
NVFP4_KERNEL void DequantizeRun(Packed in, const float* amax, float emax, int64_t start, int64_t count, typename Float::Word* y) {
  uint8_t codes[kRun];
  float factors[kRun / kBlock], per_element[kRun];
  const int64_t blocks = count / kBlock;
  const uint8_t* scales = in.scales + start / kBlock;
  if (amax != nullptr) {
    DequantFactors(scales, blocks, *amax, emax, factors);
  } else {
    for (int64_t block = 0; block < blocks; ++block) factors[block] = E4M3Value(scales[block]);
  }
  Repeat(factors, blocks, per_element);
  Unpack(in.codes + start / 2, count, codes);
  DequantizeCodes<Float>(codes, per_element, count, y + start);
}

template <typename Float, typename Element>
NVFP4_KERNEL void DequantizeMxRun(Packed in, int64_t start, int64_t count, typename Float::Word* y) {
  float factors[kRun / kMxBlock], per_element[kRun];
  const int64_t blocks = count / kMxBlock;
  for (int64_t block = 0; block < blocks; ++block) factors[block] = E8M0Value(in.scales[start / kMxBlock + block]);
  Repeat<kMxBlock>(factors, blocks, per_element);
  const uint8_t* codes = in.codes + start;
  for (int64_t i = 0; i < count; ++i) y[start + i] = Float::Narrow(Element::Value(codes[i]) * per_element[i]);
}

// `amax` is null for the values without their tensor scale.
ffi::Error Run(ffi::ThreadPool& pool, const Call& call, const float* amax) {
  if (call.size() == 0) return ffi::Error::Success();
  const Packed in{call.data<const uint8_t>(Role::kRowCodes), call.data<const uint8_t>(Role::kRowScales)};
  void* out = ResultData(call.buffer(Role::kY));
  DispatchFloat(call.dtype, [&](auto type) {
    using Float = decltype(type);
    auto* words = static_cast<typename Float::Word*>(out);
    ForEachRun(pool, call, [&](int64_t index, int64_t start, int64_t count) {
      if (call.mode.format == Format::kMxfp8) return DequantizeMxRun<Float, E4M3>(in, start, count, words);
      if (call.mode.format == Format::kMxfp8E5m2) return DequantizeMxRun<Float, E5M2>(in, start, count, words);
      DequantizeRun<Float>(in, amax ? amax + index : nullptr, call.mode.emax, start, count, words);
    });
  });
  return ffi::Error::Success();
}

ffi::Error RunDequantize(ffi::ThreadPool& pool, const Call& call) {
  return Run(pool, call, call.data<const float>(Role::kAmax));
}

ffi::Error RunDecode(ffi::ThreadPool& pool, const Call& call) { return Run(pool, call, nullptr); }

}  // namespace
}  // namespace jax_nvfp4

NVFP4_DEFINE_CPU_HANDLER(nvfp4_dequantize, kDequantize, RunDequantize);
NVFP4_DEFINE_CPU_HANDLER(nvfp4_decode, kDecode, RunDecode);
