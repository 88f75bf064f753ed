// A call as its handler sees it: the mode, the sizes, and every operand and result by its role. Which roles a verb has
// in a mode is one table, jax_nvfp4/mode.py in C++; dtypes and shapes are checked against it before anything is
// computed. Shared by the CPU and the CUDA handlers, so that both accept and reject the same calls.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "formats.h"
#include "mode.h"
#include "xla/ffi/api/ffi.h"

namespace jax_nvfp4 {

enum class Verb { kAmax, kQuantize, kQdq, kDequantize, kDecode };

enum class Role { kX, kY, kAmax, kColAmax, kGroupSizes, kSeed, kOrigin, kRowCodes, kRowScales, kColCodes, kColScales };

inline const char* Name(Role role) {
  switch (role) {
    case Role::kX:
      return "x";
    case Role::kY:
      return "y";
    case Role::kAmax:
      return "amax";
    case Role::kColAmax:
      return "column amax";
    case Role::kGroupSizes:
      return "group sizes";
    case Role::kSeed:
      return "seed";
    case Role::kOrigin:
      return "origin";
    case Role::kRowCodes:
      return "row codes";
    case Role::kRowScales:
      return "row scales";
    case Role::kColCodes:
      return "column codes";
    case Role::kColScales:
      return "column scales";
  }
  return "?";
}

inline std::string Names(const std::vector<Role>& roles) {
  std::string text;
  for (Role role : roles) text += (text.empty() ? "" : ", ") + std::string(Name(role));
  return text;
}

inline constexpr char kOtherVersion[] = ": the library and the package are of different versions";

using Dims = std::vector<int64_t>;

template <typename... Parts>
ffi::Error Invalid(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  return ffi::Error::InvalidArgument(message.str());
}

inline std::string Text(const Dims& dims) {
  std::string text;
  for (int64_t dim : dims) text += (text.empty() ? "" : ", ") + std::to_string(dim);
  return "(" + text + (dims.size() == 1 ? ",)" : ")");  // as Python writes it
}

inline Dims DimsOf(const ffi::AnyBuffer& buffer) {
  return Dims(buffer.dimensions().begin(), buffer.dimensions().end());
}

inline ffi::Error CheckBuffer(const char* name, const ffi::AnyBuffer& buffer, ffi::DataType dtype, const Dims& dims) {
  if (buffer.element_type() == dtype && DimsOf(buffer) == dims) return ffi::Error::Success();
  return Invalid(name, " must be ", dtype, " of shape ", Text(dims), ", got ", buffer.element_type(), " of shape ",
                 Text(DimsOf(buffer)));
}

struct Roles {
  std::vector<Role> operands, results;
};

inline Roles RolesOf(Verb verb, const Mode& mode) {
  std::vector<Role> quantized, amax, groups, random;
  if (mode.row.present) quantized.insert(quantized.end(), {Role::kRowCodes, Role::kRowScales});
  if (mode.col.present) quantized.insert(quantized.end(), {Role::kColCodes, Role::kColScales});
  if (mode.facts().has_amax) amax = {Role::kAmax};
  if (mode.facts().has_amax && mode.dual()) amax.push_back(Role::kColAmax);
  if (mode.grouped()) groups = {Role::kGroupSizes};
  if (mode.stochastic()) random = {Role::kSeed, Role::kOrigin};
  auto with = [](std::vector<Role> roles, const std::vector<Role>& more) {
    roles.insert(roles.end(), more.begin(), more.end());
    return roles;
  };
  switch (verb) {
    case Verb::kAmax:
      return {with({Role::kX}, groups), amax};
    case Verb::kQuantize:
      return {with(with(with({Role::kX}, amax), groups), random), quantized};
    case Verb::kQdq:
      return {with({Role::kX}, amax), {Role::kY}};
    case Verb::kDequantize:
      return {with(quantized, amax), {Role::kY}};
    case Verb::kDecode:
      return {quantized, {Role::kY}};
  }
  return {};
}

// One call, checked.
class Call {
 public:
  Mode mode;
  ffi::DataType dtype;           // of x or y
  int64_t batch = 1, rows, cols;  // of x or y; leading dimensions are batch
  int64_t groups = 0;             // per matrix, where the scope is a group

  static ffi::ErrorOr<Call> Parse(Verb verb, const Mode& mode, ffi::RemainingArgs args, ffi::RemainingRets rets) {
    Call call;
    call.mode = mode;
    ffi::Error error = call.Read(verb, args, rets);
    if (error.failure()) return ffi::Unexpected(error);
    return call;
  }

  int64_t size() const { return batch * rows * cols; }
  int64_t scopes() const { return batch * (mode.row_scope() ? rows : mode.grouped() ? groups : 1); }

  const ffi::AnyBuffer& buffer(Role role) const { return buffers_[Find(role)]; }
  bool has(Role role) const { return Find(role) < roles_.size(); }
  // Null where the call has no such operand or result.
  void* data(Role role) const { return has(role) ? buffer(role).untyped_data() : nullptr; }
  template <typename T>
  T* data(Role role) const {
    return static_cast<T*>(data(role));
  }

 private:
  size_t Find(Role role) const {
    size_t i = 0;
    while (i < roles_.size() && roles_[i] != role) ++i;
    return i;
  }

  ffi::Error Read(Verb verb, ffi::RemainingArgs args, ffi::RemainingRets rets) {
    if (ffi::Error error = CheckMode(verb); error.failure()) return error;
    const Roles roles = RolesOf(verb, mode);
    if (args.size() != roles.operands.size() || rets.size() != roles.results.size()) {
      return Invalid("this mode has ", roles.operands.size(), " operands (", Names(roles.operands), ") and ",
                     roles.results.size(), " results (", Names(roles.results), "), got ", args.size(), " and ",
                     rets.size());
    }
    for (size_t i = 0; i < args.size(); ++i) {
      ffi::ErrorOr<ffi::AnyBuffer> operand = args.get<ffi::AnyBuffer>(i);
      if (!operand) return operand.error();
      Add(roles.operands[i], *operand);
    }
    for (size_t i = 0; i < rets.size(); ++i) {
      ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>> result = rets.get<ffi::AnyBuffer>(i);
      if (!result) return result.error();
      Add(roles.results[i], **result);
    }
    return Check(verb);
  }

  // Everything that can be said about the mode before the buffers are known.
  ffi::Error CheckMode(Verb verb) const {
    const int32_t format = static_cast<int32_t>(mode.format), scope = static_cast<int32_t>(mode.scope);
    if (format < 0 || format >= kFormatCount) {
      return Invalid("format of the mode must be 0 to ", kFormatCount - 1, ", got ", format, kOtherVersion);
    }
    if (scope < 0 || scope > static_cast<int32_t>(Scope::kGroup)) {
      return Invalid("scope of the mode must be 0 (tensor), 1 (row) or 2 (group), got ", scope, kOtherVersion);
    }
    const int32_t math = static_cast<int32_t>(mode.math), error = static_cast<int32_t>(mode.search.error);
    if (math < 0 || math > static_cast<int32_t>(Math::kFast)) {
      return Invalid("math of the mode must be 0 (exact) or 1 (fast), got ", math, kOtherVersion);
    }
    if (error < 0 || error > static_cast<int32_t>(SearchError::kAbsMax)) {
      return Invalid("search_error of the mode must be 0 to 3, got ", error, kOtherVersion);
    }
    for (const auto& [name, direction] : {std::pair{"row", mode.row}, std::pair{"col", mode.col}}) {
      if (!direction.present && (direction.tile || direction.stochastic || direction.swizzled || direction.rht != kNoRht)) {
        return Invalid("the mode says how ", name, " is quantized, but has no ", name);
      }
    }
    if (mode.tile() && !mode.facts().has_tiles) return Invalid("this format has no tiles");
    if (mode.row_scope() && (mode.col.present || mode.tile())) {
      return Invalid("an amax per row needs blocks of one row along the last axis: give one amax per matrix");
    }
    if (mode.row.present && mode.col.present && mode.row.tile != mode.col.tile) {
      return Invalid("both directions of a call have the same blocks: make two calls");
    }
    if (mode.row.has_rht()) return Invalid("the transform runs along the rows of x: only a column direction has it");
    if (mode.tile() && (mode.col.has_rht() || mode.grouped())) return Invalid("tiles have neither transform nor groups");
    if (!mode.facts().has_amax && (mode.row_scope() || mode.stochastic() || mode.search.present() || mode.col.has_rht())) {
      return Invalid("this format has no amax, no stochastic rounding, no four-over-six and no Hadamard transform");
    }
    if (mode.search.present() && (mode.stochastic() || mode.col.has_rht())) {
      return Invalid("four-over-six has neither stochastic rounding nor the Hadamard transform");
    }
    if (mode.tile() && mode.stochastic()) return Invalid("tiles are never rounded stochastically: use blocks of one row");
    if (verb == Verb::kAmax) {
      const bool whole = !mode.row.present && !mode.col.present;
      if (!whole && !mode.col.has_rht()) return Invalid("an amax along columns is one of the Hadamard transform");
      return ffi::Error::Success();
    }
    if (mode.math == Math::kFast && !(mode.dual() && mode.col.has_rht())) {
      return Invalid("fast math belongs to a call with both directions and the Hadamard transform");
    }
    if (!mode.row.present && !mode.col.present) return Invalid("the mode has neither row nor col: it needs a direction");
    if (verb == Verb::kQuantize) return ffi::Error::Success();
    if (mode.grouped()) return Invalid("only amax and quantize have groups");
    if (mode.col.present) return Invalid("only quantize has a col: pass the operand as it is stored, as row");
    if (mode.row.stochastic) return Invalid("only quantize rounds stochastically");
    if (mode.row.swizzled) return Invalid("scales are linear here: unswizzle them first");
    return ffi::Error::Success();
  }

  void Add(Role role, const ffi::AnyBuffer& buffer) {
    roles_.push_back(role);
    buffers_.push_back(buffer);
  }

  ffi::Error Check(Verb verb) {
    const Role matrix = has(Role::kX) ? Role::kX : Role::kY;
    const char* name = Name(matrix);
    dims_ = DimsOf(buffer(matrix));
    dtype = buffer(matrix).element_type();
    if (dims_.size() < 2) return Invalid(name, " must have at least 2 dimensions, got ", Text(dims_));
    rows = dims_[dims_.size() - 2], cols = dims_[dims_.size() - 1];
    for (size_t i = 0; i + 2 < dims_.size(); ++i) batch *= dims_[i];
    if (dtype != ffi::DataType::BF16 && dtype != ffi::DataType::F16 && dtype != ffi::DataType::F32) {
      return Invalid(name, " must be BF16, F16 or F32, got ", dtype);
    }
    if (verb == Verb::kDecode && dtype != ffi::DataType::BF16) return Invalid("y must be BF16, got ", dtype);
    if (mode.grouped()) {
      const Dims sizes = DimsOf(buffer(Role::kGroupSizes));
      groups = sizes.empty() ? 0 : sizes.back();
    }
    const int64_t block = mode.facts().block;
    const bool quantizes = verb != Verb::kAmax;
    if (quantizes && (mode.row.present || mode.tile()) && cols % block != 0) return NotWhole("columns", name, cols);
    if ((mode.col.present || mode.tile()) && rows % block != 0) return NotWhole("rows", name, rows);
    for (size_t i = 0; i < roles_.size(); ++i) {
      if (ffi::Error error = CheckRole(roles_[i], buffers_[i]); error.failure()) return error;
    }
    return ffi::Error::Success();
  }

  ffi::Error NotWhole(const char* what, const char* name, int64_t size) const {
    return Invalid(what, " of ", name, " must be a multiple of ", mode.facts().block, ", got ", size, ": pad ", name,
                   " to whole blocks");
  }

  ffi::Error CheckRole(Role role, const ffi::AnyBuffer& buffer) const {
    switch (role) {
      case Role::kX:
      case Role::kY:
        return CheckBuffer(Name(role), buffer, dtype, dims_);
      case Role::kAmax:
      case Role::kColAmax:
        return CheckBuffer(Name(role), buffer, ffi::DataType::F32, Scopes());
      case Role::kGroupSizes:
        return CheckBuffer(Name(role), buffer, ffi::DataType::S32, Batched({groups}));
      case Role::kSeed:
        return CheckBuffer(Name(role), buffer, ffi::DataType::U32, Batched({2}));
      case Role::kOrigin:
        return CheckBuffer(Name(role), buffer, ffi::DataType::U32, Batched({3}));
      case Role::kRowCodes:
        return CheckBuffer(Name(role), buffer, mode.facts().code_dtype, Codes(rows, cols));
      case Role::kColCodes:
        return CheckBuffer(Name(role), buffer, mode.facts().code_dtype, Codes(cols, rows));
      case Role::kRowScales:
        return CheckBuffer(Name(role), buffer, mode.facts().scale_dtype, Scales(rows, cols, mode.row));
      case Role::kColScales:
        return CheckBuffer(Name(role), buffer, mode.facts().scale_dtype, Scales(cols, rows, mode.col));
    }
    return ffi::Error::Internal("no such role");
  }

  Dims Batched(std::initializer_list<int64_t> tail) const {
    Dims dims(dims_.begin(), dims_.end() - 2);
    dims.insert(dims.end(), tail);
    return dims;
  }
  Dims Scopes() const {
    return mode.row_scope() ? Batched({rows}) : mode.grouped() ? Batched({groups}) : Batched({});
  }
  Dims Codes(int64_t across, int64_t along) const { return Batched({across, along / mode.facts().codes_per_byte}); }
  Dims Scales(int64_t across, int64_t along, const Direction& direction) const {
    const int64_t blocks = along / mode.facts().block;
    if (!direction.swizzled) return Batched({across, blocks});
    return Batched({RoundUp(across, kSwizzleRows), RoundUp(blocks, kSwizzleColumns)});
  }

  Dims dims_;
  std::vector<Role> roles_;
  std::vector<ffi::AnyBuffer> buffers_;
};

// What every handler binds: `Context` is the one thing in which the two handlers of a verb differ, ffi::ThreadPool for
// the CPU and the platform's stream for CUDA.
template <typename Context>
auto Signature() {
  return ffi::Ffi::Bind().Ctx<Context>().RemainingArgs().RemainingRets().template Attr<Mode>("mode");
}

}  // namespace jax_nvfp4

// Defines and exports (the libraries are built with hidden visibility) the handler of one call.
#define NVFP4_DEFINE_HANDLER(target, impl, ...)                                                     \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* target(XLA_FFI_CallFrame* frame); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(target, impl, __VA_ARGS__)
