// Static facts about the number formats, the table of jax_nvfp4/formats.py in C++.
#pragma once

#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace jax_nvfp4 {

namespace ffi = xla::ffi;

enum class Format : int32_t { kNvfp4, kMxfp8, kMxfp8E5m2 };

struct FormatFacts {
  int64_t block;  // consecutive elements that share a scale
  int64_t codes_per_byte;
  ffi::DataType code_dtype;
  ffi::DataType scale_dtype;
  bool has_tiles;  // whether one scale can also cover block x block elements
  bool has_amax;
};

constexpr FormatFacts kFormats[] = {
    {16, 2, ffi::DataType::U8, ffi::DataType::F8E4M3FN, true, true},
    {32, 1, ffi::DataType::F8E4M3FN, ffi::DataType::F8E8M0FNU, false, false},
    {32, 1, ffi::DataType::F8E5M2, ffi::DataType::F8E8M0FNU, false, false},
};
constexpr int32_t kFormatCount = sizeof(kFormats) / sizeof(kFormats[0]);

constexpr const FormatFacts& Facts(Format format) { return kFormats[static_cast<int32_t>(format)]; }

constexpr int64_t kSwizzleRows = 128;  // rows of scales per swizzle tile
constexpr int64_t kSwizzleColumns = 4;
constexpr int64_t kSwizzleLanes = 32;  // rows of a swizzle tile that lie 16 bytes apart

constexpr int64_t RoundUp(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }

}  // namespace jax_nvfp4
