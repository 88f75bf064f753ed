// nvfp4_quantize, nvfp4_quantize_stochastic and nvfp4_quantize_dual on CUDA.
#include "device.h"

namespace jax_nvfp4::cuda {
namespace {

constexpr Tensor kUnused = {nullptr, 0};

// The kernels count the blocks of a matrix, its rows and its columns in 31 bits.
ffi::Error CheckSize(const Operand& x) {
  constexpr int64_t kMaxBlocks = (int64_t{1} << 31) - 1024, kMaxSide = (int64_t{1} << 31) - 1;
  if (x.rows * x.cols / kBlock < kMaxBlocks && x.rows <= kMaxSide && x.cols <= kMaxSide) return ffi::Error::Success();
  return Invalid("a matrix must have fewer than ", kMaxBlocks, " blocks of 16 on a GPU, got ", x.rows, " x ", x.cols,
                 ": split it into several, with one amax");
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
  ffi::Error checked = CheckSize(*operand);
  if (checked.failure() || operand->size() == 0) return checked;
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
  ffi::Error checked = CheckSize(*operand);
  if (checked.failure() || operand->size() == 0) return checked;
  return Launch1x16(stream, *operand, kStochastic, swizzled, columnwise, Flat(x), Flat(amax), Flat(seed),
                    Flat(origin), Flat(*codes), Flat(*scales));
}

ffi::Error QuantizeDual(cudaStream_t stream, ffi::AnyBuffer x, ffi::AnyBuffer amax,
                        ffi::Result<ffi::AnyBuffer> row_codes, ffi::Result<ffi::AnyBuffer> row_scales,
                        ffi::Result<ffi::AnyBuffer> col_codes, ffi::Result<ffi::AnyBuffer> col_scales, bool swizzled) {
  ffi::ErrorOr<Operand> operand =
      ParseQuantizeDual(x, amax, swizzled, *row_codes, *row_scales, *col_codes, *col_scales);
  if (!operand) return operand.error();
  ffi::Error checked = CheckSize(*operand);
  if (checked.failure() || operand->size() == 0) return checked;
  return LaunchTiles(stream, *operand, kAlongRows | kAlongColumns, swizzled, Flat(x), Flat(amax), Flat(*row_codes),
                     Flat(*row_scales), Flat(*col_codes), Flat(*col_scales));
}

}  // namespace
}  // namespace jax_nvfp4::cuda

NVFP4_DEFINE_CUDA_HANDLER(nvfp4_quantize, jax_nvfp4::cuda::Quantize, jax_nvfp4::QuantizeSignature);
NVFP4_DEFINE_CUDA_HANDLER(nvfp4_quantize_stochastic, jax_nvfp4::cuda::QuantizeStochastic,
                          jax_nvfp4::QuantizeStochasticSignature);
NVFP4_DEFINE_CUDA_HANDLER(nvfp4_quantize_dual, jax_nvfp4::cuda::QuantizeDual, jax_nvfp4::QuantizeDualSignature);
