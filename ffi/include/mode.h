// What a call is told, beside its operands: jax_nvfp4/mode.py in C++. It arrives as one attribute, whose members are
// those below in this order; a missing or a surplus one is an error of XLA's own.
#pragma once

#include <cstdint>

#include "formats.h"
#include "xla/ffi/api/ffi.h"

namespace jax_nvfp4 {

enum class Scope : int32_t { kTensor, kRow, kGroup };
enum class Math : int32_t { kExact, kFast };
enum class SearchError : int32_t { kNone, kMae, kMse, kAbsMax };

constexpr int32_t kNoRht = -1;

// How one output, or one quantized operand, is quantized.
struct Direction {
  bool present;
  bool tile;  // one scale per block x block tile
  bool stochastic;
  bool swizzled;
  int32_t rht;  // sign mask of the random Hadamard transform, or kNoRht

  bool has_rht() const { return present && rht != kNoRht; }
};

// Four-over-six: how the error of a scale is measured, kNone for the standard scale.
struct Search {
  SearchError error;
  bool fp16;  // in units of the block scale, which are exact in float16
  bool tree;  // order of summation

  bool present() const { return error != SearchError::kNone; }
};

struct Mode {
  Format format;
  Scope scope;
  Math math;
  bool zero_tail;  // rows past the last group get codes and scales
  float emax;      // the largest block scale
  Search search;
  bool scale_floor;  // powers of two: of the largest binade instead of the next above the largest value
  Direction row;  // blocks along the last axis of x
  Direction col;  // blocks along its rows, stored transposed

  const FormatFacts& facts() const { return Facts(format); }
  bool row_scope() const { return scope == Scope::kRow; }
  bool grouped() const { return scope == Scope::kGroup; }
  bool dual() const { return row.present && col.present && !tile(); }  // two outputs with an amax each
  bool tile() const { return row.tile || col.tile; }
  bool stochastic() const { return row.stochastic || col.stochastic; }
};

inline bool operator==(const Direction& a, const Direction& b) {
  return a.present == b.present && a.tile == b.tile && a.stochastic == b.stochastic && a.swizzled == b.swizzled &&
         a.rht == b.rht;
}

inline bool operator==(const Search& a, const Search& b) {
  return a.error == b.error && a.fp16 == b.fp16 && a.tree == b.tree;
}

inline bool operator==(const Mode& a, const Mode& b) {
  return a.format == b.format && a.scope == b.scope && a.math == b.math && a.zero_tail == b.zero_tail && a.emax == b.emax &&
         a.search == b.search && a.scale_floor == b.scale_floor &&
         a.row == b.row && a.col == b.col;
}

}  // namespace jax_nvfp4

XLA_FFI_REGISTER_ENUM_ATTR_DECODING(jax_nvfp4::Format);
XLA_FFI_REGISTER_ENUM_ATTR_DECODING(jax_nvfp4::Scope);
XLA_FFI_REGISTER_ENUM_ATTR_DECODING(jax_nvfp4::Math);
XLA_FFI_REGISTER_ENUM_ATTR_DECODING(jax_nvfp4::SearchError);
// The members of a direction are members of the attribute: `Mode` is an aggregate, filled in order.
#define NVFP4_DIRECTION_MEMBERS(name)                                                                        \
  xla::ffi::StructMember<bool>(name), xla::ffi::StructMember<bool>(name "_tile"),                          \
      xla::ffi::StructMember<bool>(name "_stochastic"), xla::ffi::StructMember<bool>(name "_swizzled"), \
      xla::ffi::StructMember<int32_t>(name "_rht")
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_nvfp4::Mode, xla::ffi::StructMember<jax_nvfp4::Format>("format"),
                                      xla::ffi::StructMember<jax_nvfp4::Scope>("scope"),
                                      xla::ffi::StructMember<jax_nvfp4::Math>("math"),
                                      xla::ffi::StructMember<bool>("zero_tail"), xla::ffi::StructMember<float>("emax"),
                                      xla::ffi::StructMember<jax_nvfp4::SearchError>("search_error"),
                                      xla::ffi::StructMember<bool>("search_fp16"),
                                      xla::ffi::StructMember<bool>("search_tree"),
                                      xla::ffi::StructMember<bool>("scale_floor"),
                                      NVFP4_DIRECTION_MEMBERS("row"), NVFP4_DIRECTION_MEMBERS("col"));
