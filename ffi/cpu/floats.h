// The element types of x and y, each as its storage word with an exact widening to float32 and one rounding
// back (docs/numerics.md, opening notes): integer code, so every value and every subnormal is right at any
// vector width, and every NaN written is canonical.
#pragma once

#include <cstdint>
#include <cstring>

#include "vectorize.h"
#include "xla/ffi/api/ffi.h"

namespace jax_nvfp4 {

NVFP4_INLINE uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

NVFP4_INLINE float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// condition ? yes : no without a branch, which the compiler may otherwise make of it and then not vectorize.
NVFP4_INLINE uint32_t Select(bool condition, uint32_t yes, uint32_t no) {
  uint32_t mask = 0 - static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

constexpr uint32_t kAbs = 0x7FFFFFFF;
constexpr uint32_t kInf = 0x7F800000;
constexpr uint32_t kNan = 0x7FC00000;

struct Float32 {
  using Word = float;
  static NVFP4_INLINE float Widen(Word word) { return word; }
  static NVFP4_INLINE Word Narrow(float value) {
    return FromBits(Select(value != value, kNan, Bits(value)));
  }
};

struct BFloat16 {
  using Word = uint16_t;
  static NVFP4_INLINE float Widen(Word word) { return FromBits(static_cast<uint32_t>(word) << 16); }
  static NVFP4_INLINE Word Narrow(float value) {
    uint32_t bits = Bits(value);
    uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    return static_cast<Word>(Select(value != value, kNan >> 16, rounded));
  }
};

struct Float16 {
  using Word = uint16_t;
  static NVFP4_INLINE float Widen(Word word) {
    int32_t magnitude = word & 0x7FFF;
    int32_t rebias = magnitude >= 0x7C00 ? 224 << 23 : 112 << 23;  // Inf and NaN keep an exponent of all ones
    float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    uint32_t bits = Select(magnitude < 0x0400, Bits(subnormal), (magnitude << 13) + rebias);
    return FromBits(bits | (word & 0x8000u) << 16);
  }
  static NVFP4_INLINE Word Narrow(float value) {
    uint32_t bits = Bits(value);
    int32_t magnitude = bits & kAbs;
    uint32_t normal = ((bits & kAbs) + 0xFFF + (bits >> 13 & 1) - (112u << 23)) >> 13;
    uint32_t subnormal = Bits(FromBits(magnitude) + 0.5f) - Bits(0.5f);  // 0.5 has an ulp of 2^-24, the subnormal step
    uint32_t rounded = Select(magnitude < static_cast<int32_t>(Bits(0x1p-14f)), subnormal, normal);
    rounded = Select(magnitude >= static_cast<int32_t>(Bits(65520.0f)), 0x7C00, rounded);
    rounded = (bits >> 16 & 0x8000) | rounded;
    return static_cast<Word>(Select(value != value, 0x7E00, rounded));
  }
};

// The bits of |value|: they order like the magnitudes with NaN on top, so an integer maximum propagates NaN.
NVFP4_INLINE uint32_t MagnitudeBits(float word) { return Bits(word) & kAbs; }
NVFP4_INLINE uint16_t MagnitudeBits(uint16_t word) { return word & 0x7FFF; }

// Float32 value of a maximum of magnitude bits, NaN canonical.
template <typename Float, typename Magnitude>
NVFP4_INLINE float Amax(Magnitude magnitude) {
  typename Float::Word word;
  std::memcpy(&word, &magnitude, sizeof(word));
  return Float32::Narrow(Float::Widen(word));
}

// Calls f with the type that stands for dtype, which has been checked to be one of the three.
template <typename F>
void DispatchFloat(xla::ffi::DataType dtype, const F& f) {
  if (dtype == xla::ffi::DataType::BF16) return f(BFloat16{});
  if (dtype == xla::ffi::DataType::F16) return f(Float16{});
  return f(Float32{});
}

}  // namespace jax_nvfp4
