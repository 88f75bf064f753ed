// nvfp4_qdq: quantize and dequantize in one pass, the bits of nvfp4_dequantize after nvfp4_quantize.
#include <algorithm>
#include <cstdint>

#include "blocks.h"
#include "operands.h"
#include "pages.h"
#include "parallel.h"
#include "signatures.h"

namespace jax_nvfp4 {
namespace {

// Multipliers and dequantization factors, per element, of a run whose blocks have the given amaxes.
struct RunScales {
  float multipliers[kRun];
  float factors[kRun];

  NVFP4_INLINE RunScales(const float* block_amax, int64_t blocks, float amax) {
    uint8_t scales[kRun / kBlock];
    float per_block[kRun / kBlock];
    BlockScales(block_amax, blocks, TensorScale(amax), scales, per_block);
    Repeat(per_block, blocks, multipliers);
    DequantFactors(scales, blocks, amax, per_block);
    Repeat(per_block, blocks, factors);
  }
};

// A NaN element makes the factor of its block NaN, so what it rounds to does not matter.
template <typename Float>
NVFP4_INLINE void QdqRow(const typename Float::Word* __restrict x, const RunScales& scales, int64_t count,
                         typename Float::Word* __restrict y) {
  for (int64_t i = 0; i < count; ++i) {
    y[i] = Float::Narrow(E2M1Rounded(Float::Widen(x[i]) * scales.multipliers[i]) * scales.factors[i]);
  }
}

template <typename Float>
NVFP4_KERNEL void QdqRun(const typename Float::Word* x, float amax, int64_t count, typename Float::Word* y) {
  float block_amax[kRun / kBlock];
  RowAmax<Float>(x, count / kBlock, block_amax);
  QdqRow<Float>(x, RunScales(block_amax, count / kBlock, amax), count, y);
}

template <typename Float>
NVFP4_KERNEL void QdqStrip(const typename Float::Word* x, float amax, int64_t stride, int64_t cols,
                           typename Float::Word* y) {
  float tile_amax[kStripCols / kBlock];
  TileAmax<Float>(x, stride, cols, tile_amax);
  const RunScales scales(tile_amax, cols / kBlock, amax);
  for (int64_t row = 0; row < kBlock; ++row) QdqRow<Float>(x + row * stride, scales, cols, y + row * stride);
}

template <typename Float>
void Qdq(ffi::ThreadPool& pool, const Operand& operand, const void* input, const float* amax, bool tile, void* output) {
  auto* x = static_cast<const typename Float::Word*>(input);
  auto* y = static_cast<typename Float::Word*>(output);
  if (!tile) {
    ForEachRun(pool, operand, [&](int64_t index, int64_t start, int64_t count) {
      QdqRun<Float>(x + start, amax[index], count, y + start);
    });
    return;
  }
  const int64_t strips = operand.rows / kBlock, across = (operand.cols + kStripCols - 1) / kStripCols;
  const int64_t unit_elements = kBlock * std::min(operand.cols, kStripCols);
  ParallelFor(pool, operand.batch * strips * across, unit_elements, [&](int64_t unit) {
    const int64_t strip = unit / across, col = unit % across * kStripCols;
    const int64_t start = strip * kBlock * operand.cols + col;
    QdqStrip<Float>(x + start, amax[strip / strips], operand.cols, std::min(kStripCols, operand.cols - col), y + start);
  });
}

ffi::Error QdqHandler(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer amax, ffi::Result<ffi::AnyBuffer> y,
                      bool tile) {
  ffi::ErrorOr<Operand> operand = ParseQdq(x, amax, tile, *y);
  if (!operand) return operand.error();
  if (operand->size() == 0) return ffi::Error::Success();
  DispatchFloat(operand->dtype, [&](auto type) {
    Qdq<decltype(type)>(pool, *operand, x.untyped_data(), static_cast<const float*>(amax.untyped_data()), tile,
                        ResultData(*y));
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jax_nvfp4

NVFP4_DEFINE_HANDLER(nvfp4_qdq, jax_nvfp4::QdqHandler, jax_nvfp4::QdqSignature<xla::ffi::ThreadPool>());
