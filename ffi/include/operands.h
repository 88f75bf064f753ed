// What every handler checks before it computes: dtypes, shapes and modes of the operands and results of
// one call. Shared by the CPU and the CUDA handlers, so that both accept and reject the same calls.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace jax_nvfp4 {

namespace ffi = xla::ffi;

constexpr int64_t kBlock = 16;         // elements per block scale, and the side of a square tile
constexpr int64_t kSwizzleRows = 128;  // rows of scales per swizzle tile
constexpr int64_t kSwizzleColumns = 4;

using Dims = std::vector<int64_t>;

// A (..., rows, cols) array with its leading dimensions flattened into `batch`.
struct Operand {
  ffi::DataType dtype;
  int64_t batch;
  int64_t rows;
  int64_t cols;
  bool row_scope;  // one amax per row instead of one per matrix

  int64_t size() const { return batch * rows * cols; }
};

inline constexpr int64_t RoundUp(int64_t size, int64_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

template <typename... Parts>
ffi::Error Invalid(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  return ffi::Error::InvalidArgument(message.str());
}

inline std::string Text(const Dims& dims) {
  std::string text;
  for (int64_t dim : dims) text += (text.empty() ? "" : ", ") + std::to_string(dim);
  return "(" + text + ")";
}

inline Dims DimsOf(const ffi::AnyBuffer& buffer) {
  return Dims(buffer.dimensions().begin(), buffer.dimensions().end());
}

// `lead` without its last `drop` dimensions, followed by `tail`.
inline Dims Extend(const Dims& lead, size_t drop, const Dims& tail) {
  Dims dims(lead.begin(), lead.end() - drop);
  dims.insert(dims.end(), tail.begin(), tail.end());
  return dims;
}

inline ffi::Error CheckBuffer(const char* name, const ffi::AnyBuffer& buffer, ffi::DataType dtype,
                              const Dims& dims) {
  if (buffer.element_type() == dtype && DimsOf(buffer) == dims) return ffi::Error::Success();
  return Invalid(name, " must be ", dtype, " of shape ", Text(dims), ", got ", buffer.element_type(),
                 " of shape ", Text(DimsOf(buffer)));
}

inline ffi::Error CheckFloat(const char* name, const ffi::AnyBuffer& buffer) {
  ffi::DataType dtype = buffer.element_type();
  if (dtype == ffi::DataType::BF16 || dtype == ffi::DataType::F16 || dtype == ffi::DataType::F32) {
    return ffi::Error::Success();
  }
  return Invalid(name, " must be BF16, F16 or F32, got ", dtype);
}

inline ffi::Error CheckMultiple(const char* name, int64_t size) {
  if (size % kBlock == 0) return ffi::Error::Success();
  return Invalid(name, " must be a multiple of ", kBlock, ", got ", size, ": pad x to whole blocks");
}

// First failure of several checks, or success.
template <typename... Errors>
ffi::Error FirstOf(const Errors&... errors) {
  ffi::Error first;
  ((first.success() && errors.failure() ? void(first = errors) : void()), ...);
  return first;
}

inline ffi::ErrorOr<Operand> ParseMatrix(const char* name, const ffi::AnyBuffer& buffer) {
  Dims dims = DimsOf(buffer);
  if (dims.size() < 2) return ffi::Unexpected(Invalid(name, " must have at least 2 dimensions, got ", Text(dims)));
  Operand operand{buffer.element_type(), 1, dims[dims.size() - 2], dims[dims.size() - 1], false};
  for (size_t i = 0; i + 2 < dims.size(); ++i) operand.batch *= dims[i];
  return operand;
}

// Whether `amax` holds one value per row of `matrix` (one rank less) rather than one per matrix.
inline bool IsRowScope(const ffi::AnyBuffer& matrix, const ffi::AnyBuffer& amax) {
  return amax.dimensions().size() + 1 == matrix.dimensions().size();
}

inline ffi::Error CheckAmax(const ffi::AnyBuffer& matrix, const ffi::AnyBuffer& amax, bool row_scope) {
  return CheckBuffer("amax", amax, ffi::DataType::F32, Extend(DimsOf(matrix), row_scope ? 1 : 2, {}));
}

// Codes and block scales of a (rows, cols) operand quantized along cols, batched like `x`.
inline ffi::Error CheckQuantized(const ffi::AnyBuffer& x, int64_t rows, int64_t cols, bool swizzled,
                                 const ffi::AnyBuffer& codes, const ffi::AnyBuffer& scales) {
  int64_t blocks = cols / kBlock;
  Dims scale_dims = swizzled ? Dims{RoundUp(rows, kSwizzleRows), RoundUp(blocks, kSwizzleColumns)}
                             : Dims{rows, blocks};
  return FirstOf(CheckBuffer("codes", codes, ffi::DataType::U8, Extend(DimsOf(x), 2, {rows, cols / 2})),
                 CheckBuffer("scales", scales, ffi::DataType::F8E4M3FN, Extend(DimsOf(x), 2, scale_dims)));
}

inline ffi::ErrorOr<Operand> OperandOrError(const Operand& operand, const ffi::Error& error) {
  if (error.failure()) return ffi::Unexpected(error);
  return operand;
}

inline ffi::ErrorOr<Operand> ParseAmax(const ffi::AnyBuffer& x, bool row_scope, const ffi::AnyBuffer& amax) {
  ffi::ErrorOr<Operand> operand = ParseMatrix("x", x);
  if (!operand) return operand;
  operand->row_scope = row_scope;
  return OperandOrError(*operand, FirstOf(CheckFloat("x", x), CheckAmax(x, amax, row_scope)));
}

inline ffi::ErrorOr<Operand> ParseQuantize(const ffi::AnyBuffer& x, const ffi::AnyBuffer& amax, int32_t axis,
                                           bool tile, bool swizzled, const ffi::AnyBuffer& codes,
                                           const ffi::AnyBuffer& scales) {
  ffi::ErrorOr<Operand> operand = ParseMatrix("x", x);
  if (!operand) return operand;
  if (axis != -1 && axis != -2) return ffi::Unexpected(Invalid("axis must be -1 or -2, got ", axis));
  operand->row_scope = IsRowScope(x, amax);
  if (operand->row_scope && (axis != -1 || tile)) {
    return ffi::Unexpected(Invalid("an amax per row needs axis=-1 and 1x16 blocks, got axis=", axis,
                                   tile ? " and 16x16 tiles" : "", ": give one amax per matrix"));
  }
  int64_t rows = operand->rows, cols = operand->cols;
  bool columnwise = axis == -2;
  ffi::Error whole_rows = columnwise || tile ? CheckMultiple("rows of x", rows) : ffi::Error::Success();
  ffi::Error whole_cols = !columnwise || tile ? CheckMultiple("columns of x", cols) : ffi::Error::Success();
  return OperandOrError(
      *operand, FirstOf(CheckFloat("x", x), whole_rows, whole_cols, CheckAmax(x, amax, operand->row_scope),
                        CheckQuantized(x, columnwise ? cols : rows, columnwise ? rows : cols, swizzled, codes,
                                       scales)));
}

inline ffi::ErrorOr<Operand> ParseQuantizeStochastic(const ffi::AnyBuffer& x, const ffi::AnyBuffer& amax,
                                                     const ffi::AnyBuffer& seed, const ffi::AnyBuffer& origin,
                                                     int32_t axis, bool swizzled, const ffi::AnyBuffer& codes,
                                                     const ffi::AnyBuffer& scales) {
  ffi::ErrorOr<Operand> operand = ParseQuantize(x, amax, axis, /*tile=*/false, swizzled, codes, scales);
  if (!operand) return operand;
  return OperandOrError(*operand,
                        FirstOf(CheckBuffer("seed", seed, ffi::DataType::U32, Extend(DimsOf(x), 2, {2})),
                                CheckBuffer("origin", origin, ffi::DataType::U32, Extend(DimsOf(x), 2, {3}))));
}

inline ffi::ErrorOr<Operand> ParseQuantizeDual(const ffi::AnyBuffer& x, const ffi::AnyBuffer& amax, bool swizzled,
                                               const ffi::AnyBuffer& row_codes, const ffi::AnyBuffer& row_scales,
                                               const ffi::AnyBuffer& col_codes, const ffi::AnyBuffer& col_scales) {
  ffi::ErrorOr<Operand> operand = ParseQuantize(x, amax, -1, /*tile=*/true, swizzled, row_codes, row_scales);
  if (!operand) return operand;
  return ParseQuantize(x, amax, -2, /*tile=*/true, swizzled, col_codes, col_scales);
}

// Codes (..., rows, cols/2) with linear scales, decoded into `y`; the operand describes y.
inline ffi::ErrorOr<Operand> ParseDecode(const ffi::AnyBuffer& codes, const ffi::AnyBuffer& scales,
                                         const ffi::AnyBuffer& y) {
  ffi::ErrorOr<Operand> operand = ParseMatrix("y", y);
  if (!operand) return operand;
  return OperandOrError(*operand,
                        FirstOf(CheckBuffer("y", y, ffi::DataType::BF16, DimsOf(y)),
                                CheckMultiple("columns of y", operand->cols),
                                CheckQuantized(y, operand->rows, operand->cols, /*swizzled=*/false, codes, scales)));
}

inline ffi::ErrorOr<Operand> ParseDequantize(const ffi::AnyBuffer& codes, const ffi::AnyBuffer& scales,
                                             const ffi::AnyBuffer& amax, const ffi::AnyBuffer& y) {
  ffi::ErrorOr<Operand> operand = ParseMatrix("y", y);
  if (!operand) return operand;
  operand->row_scope = IsRowScope(y, amax);
  return OperandOrError(*operand,
                        FirstOf(CheckFloat("y", y), CheckMultiple("columns of y", operand->cols),
                                CheckQuantized(y, operand->rows, operand->cols, /*swizzled=*/false, codes, scales),
                                CheckAmax(y, amax, operand->row_scope)));
}

inline ffi::ErrorOr<Operand> ParseQdq(const ffi::AnyBuffer& x, const ffi::AnyBuffer& amax, bool tile,
                                      const ffi::AnyBuffer& y) {
  ffi::ErrorOr<Operand> operand = ParseMatrix("x", x);
  if (!operand) return operand;
  operand->row_scope = IsRowScope(x, amax);
  if (operand->row_scope && tile) {
    return ffi::Unexpected(Invalid("an amax per row needs 1x16 blocks, got 16x16 tiles: give one amax per matrix"));
  }
  ffi::Error whole_rows = tile ? CheckMultiple("rows of x", operand->rows) : ffi::Error::Success();
  return OperandOrError(*operand, FirstOf(CheckFloat("x", x), whole_rows, CheckMultiple("columns of x", operand->cols),
                                          CheckAmax(x, amax, operand->row_scope),
                                          CheckBuffer("y", y, x.element_type(), DimsOf(x))));
}

}  // namespace jax_nvfp4
