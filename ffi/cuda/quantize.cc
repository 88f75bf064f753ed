// nvfp4_quantize, nvfp4_quantize_stochastic and nvfp4_quantize_dual on CUDA.
#include "device.h"

namespace jax_nvfp4::cuda {
namespace {

constexpr Tensor kUnused = {nullptr, 0};

// Clears swizzled scales that have padding, which the kernels do not write. `rows` and `cols` are those of the
// quantized operand: x, or its transpose.
ffi::Error ClearPadding(cudaStream_t stream, ffi::Result<ffi::AnyBuffer> scales, int64_t rows, int64_t cols,
                        bool swizzled) {
  bool padded = rows % kSwizzleRows != 0 || cols / kBlock % kSwizzleColumns != 0;
  if (!swizzled || !padded || scales->size_bytes() == 0) return ffi::Error::Success();
  return CheckCuda("clearing scale padding",
                   cudaMemsetAsync(scales->untyped_data(), 0, scales->size_bytes(), stream));
}

ffi::Error Launch1x16(cudaStream_t stream, const Operand& operand, int flags, bool swizzled, bool columnwise, Tensor x,
                      Tensor amax, Tensor seed, Tensor origin, Tensor codes, Tensor scales) {
  Kernel kernel = columnwise ? Kernel::quantize_columns : Kernel::quantize_rows;
  ffi::ErrorOr<const Variant*> variant = FindVariant(kernel, operand.dtype, flags);
  if (!variant) return variant.error();
  cudaError_t status =
      columnwise ? launch_quantize_columns(**variant, stream, x, amax, seed, origin, codes, scales, operand.batch,
                                           operand.rows, operand.cols, swizzled)
                 : launch_quantize_rows(**variant, stream, x, amax, seed, origin, codes, scales, operand.batch,
                                        operand.rows, operand.cols, operand.row_scope, swizzled);
  return CheckCuda("quantize", status);
}

ffi::Error LaunchTiles(cudaStream_t stream, const Operand& operand, int flags, bool swizzled, Tensor x, Tensor amax,
                       Tensor row_codes, Tensor row_scales, Tensor col_codes, Tensor col_scales) {
  ffi::ErrorOr<const Variant*> variant = FindVariant(Kernel::quantize_tiles, operand.dtype, flags);
  if (!variant) return variant.error();
  return CheckCuda("quantize", launch_quantize_tiles(**variant, stream, x, amax, row_codes, row_scales, col_codes,
                                                     col_scales, operand.batch, operand.rows, operand.cols, swizzled));
}

ffi::Error Quantize(cudaStream_t stream, ffi::AnyBuffer x, ffi::AnyBuffer amax, ffi::Result<ffi::AnyBuffer> codes,
                    ffi::Result<ffi::AnyBuffer> scales, int32_t axis, bool tile, bool swizzled) {
  ffi::ErrorOr<Operand> operand = ParseQuantize(x, amax, axis, tile, swizzled, *codes, *scales);
  if (!operand) return operand.error();
  bool columnwise = axis == -2;
  int64_t rows = columnwise ? operand->cols : operand->rows, cols = columnwise ? operand->rows : operand->cols;
  ffi::Error cleared = ClearPadding(stream, scales, rows, cols, swizzled);
  if (cleared.failure() || operand->size() == 0) return cleared;
  if (!tile) {
    return Launch1x16(stream, *operand, 0, swizzled, columnwise, Flat(x), Flat(amax), kUnused, kUnused, Flat(*codes),
                      Flat(*scales));
  }
  if (columnwise) {
    return LaunchTiles(stream, *operand, kAlongColumns, swizzled, Flat(x), Flat(amax), kUnused, kUnused, Flat(*codes),
                       Flat(*scales));
  }
  return LaunchTiles(stream, *operand, kAlongRows, swizzled, Flat(x), Flat(amax), Flat(*codes), Flat(*scales), kUnused,
                     kUnused);
}

ffi::Error QuantizeStochastic(cudaStream_t stream, ffi::AnyBuffer x, ffi::AnyBuffer amax, ffi::AnyBuffer seed,
                              ffi::AnyBuffer origin, ffi::Result<ffi::AnyBuffer> codes,
                              ffi::Result<ffi::AnyBuffer> scales, int32_t axis, bool swizzled) {
  ffi::ErrorOr<Operand> operand =
      ParseQuantizeStochastic(x, amax, seed, origin, axis, swizzled, *codes, *scales);
  if (!operand) return operand.error();
  bool columnwise = axis == -2;
  int64_t rows = columnwise ? operand->cols : operand->rows, cols = columnwise ? operand->rows : operand->cols;
  ffi::Error cleared = ClearPadding(stream, scales, rows, cols, swizzled);
  if (cleared.failure() || operand->size() == 0) return cleared;
  return Launch1x16(stream, *operand, kStochastic, swizzled, columnwise, Flat(x), Flat(amax), Flat(seed),
                    Flat(origin), Flat(*codes), Flat(*scales));
}

ffi::Error QuantizeDual(cudaStream_t stream, ffi::AnyBuffer x, ffi::AnyBuffer amax,
                        ffi::Result<ffi::AnyBuffer> row_codes, ffi::Result<ffi::AnyBuffer> row_scales,
                        ffi::Result<ffi::AnyBuffer> col_codes, ffi::Result<ffi::AnyBuffer> col_scales, bool swizzled) {
  ffi::ErrorOr<Operand> operand =
      ParseQuantizeDual(x, amax, swizzled, *row_codes, *row_scales, *col_codes, *col_scales);
  if (!operand) return operand.error();
  ffi::Error cleared = FirstOf(ClearPadding(stream, row_scales, operand->rows, operand->cols, swizzled),
                               ClearPadding(stream, col_scales, operand->cols, operand->rows, swizzled));
  if (cleared.failure() || operand->size() == 0) return cleared;
  return LaunchTiles(stream, *operand, kAlongRows | kAlongColumns, swizzled, Flat(x), Flat(amax), Flat(*row_codes),
                     Flat(*row_scales), Flat(*col_codes), Flat(*col_scales));
}

}  // namespace
}  // namespace jax_nvfp4::cuda

NVFP4_DEFINE_CUDA_HANDLER(nvfp4_quantize, jax_nvfp4::cuda::Quantize, jax_nvfp4::QuantizeSignature);
NVFP4_DEFINE_CUDA_HANDLER(nvfp4_quantize_stochastic, jax_nvfp4::cuda::QuantizeStochastic,
                          jax_nvfp4::QuantizeStochasticSignature);
NVFP4_DEFINE_CUDA_HANDLER(nvfp4_quantize_dual, jax_nvfp4::cuda::QuantizeDual, jax_nvfp4::QuantizeDualSignature);
