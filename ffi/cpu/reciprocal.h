// The reciprocal of fast math (docs/numerics.md section 7), which a GPU computes in one instruction. Its result is
// that of a correctly rounded division or one unit beside, which depends on the mantissa only: a table, measured once.
#pragma once

#include <cstdint>

#include "floats.h"

namespace jax_nvfp4 {

// For each of the 2^23 mantissas two bits, 1 + (approximate - rounded) in units of the last place. Low bits first.
extern "C" const uint8_t jax_nvfp4_rcp_approx[] __attribute__((visibility("hidden")));

// Of a number >= 0 below 2^126, or NaN. Zero and subnormal numbers give Inf.
NVFP4_INLINE float ApproximateReciprocal(float d) {
  if (!(d >= 0x1p-126f)) return d != d ? d : FromBits(kInf);
  const uint32_t mantissa = Bits(d) & 0x7FFFFF;
  const int32_t correction = (jax_nvfp4_rcp_approx[mantissa / 4] >> mantissa % 4 * 2 & 3) - 1;
  // A division of the mantissa alone stays clear of subnormal results, which the GPU's range does too.
  const uint32_t of_mantissa = Bits(1.0f / FromBits(mantissa | Bits(1.0f))) + correction;
  return FromBits(of_mantissa - (Bits(d) - mantissa - Bits(1.0f)));
}

}  // namespace jax_nvfp4
