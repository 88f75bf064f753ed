// MXFP8 (docs/numerics.md section 8): elements of one byte, a power of two per 32 of them.
#pragma once

#include <cstdint>

#include "e4m3.h"
#include "e5m2.h"
#include "e8m0.h"
#include "formats.h"

namespace jax_nvfp4 {

constexpr int64_t kMxBlock = Facts(Format::kMxfp8).block;

struct E4M3 {
  static constexpr float kMax = 448.0f;
  static constexpr int32_t kEmax = 8;  // of the largest binade
  static NVFP4_INLINE uint8_t Encode(float value) { return E4M3Encode(value); }
  static NVFP4_INLINE float Value(uint8_t byte) { return E4M3Value(byte); }
};

struct E5M2 {
  static constexpr float kMax = 57344.0f;
  static constexpr int32_t kEmax = 15;
  static NVFP4_INLINE uint8_t Encode(float value) { return E5M2Encode(value); }
  static NVFP4_INLINE float Value(uint8_t byte) { return E5M2Value(byte); }
};

// Scales and multipliers of blocks with the given largest magnitudes.
template <typename Element>
NVFP4_INLINE void MxScales(const float* __restrict amax, int64_t blocks, bool floor, uint8_t* __restrict scales,
                           float* __restrict multipliers) {
  for (int64_t i = 0; i < blocks; ++i) {
    scales[i] = floor ? E8M0Floor(amax[i], Element::kEmax) : E8M0Ceil(amax[i] * (1.0f / Element::kMax));
  }
  for (int64_t i = 0; i < blocks; ++i) multipliers[i] = E8M0Multiplier(scales[i]);
}

}  // namespace jax_nvfp4
