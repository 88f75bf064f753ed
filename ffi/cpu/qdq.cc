// nvfp4_qdq: quantize and dequantize in one pass, the bits of nvfp4_dequantize after nvfp4_quantize.
#include <algorithm>
#include <cstdint>

#include "blocks.h"
#include "handler.h"
#include "mxfp8.h"
#include "pages.h"
#include "parallel.h"
#include "search.h"

namespace jax_nvfp4 {
namespace {

// Multipliers and dequantization factors, per element, of a run of blocks.
struct RunScales {
  float multipliers[kRun];
  float factors[kRun];

  // `scale_blocks` fills in the scale and the multiplier of each block.
  template <typename ScaleBlocks>
  NVFP4_INLINE RunScales(int64_t blocks, float amax, const Mode& mode, const ScaleBlocks& scale_blocks) {
    uint8_t scales[kRun / kBlock];
    float per_block[kRun / kBlock];
    scale_blocks(TensorScale(amax, mode), scales, per_block);
    Repeat(per_block, blocks, multipliers);
    DequantFactors(scales, blocks, amax, mode.emax, per_block);
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
NVFP4_KERNEL void QdqRun(const typename Float::Word* x, float amax, const Mode& mode, int64_t count,
                         typename Float::Word* y) {
  float block_amax[kRun / kBlock];
  const int64_t blocks = count / kBlock;
  RowAmax<Float>(x, blocks, block_amax);
  const RunScales scales(blocks, amax, mode, [&](const TensorScale& tensor, uint8_t* scales, float* multipliers) {
    if (mode.search.present()) {
      SearchBlockScales<Float>(x, block_amax, blocks, tensor, mode.search, scales, multipliers);
    } else {
      BlockScales(block_amax, blocks, tensor, scales, multipliers);
    }
  });
  QdqRow<Float>(x, scales, count, y);
}

template <typename Float>
NVFP4_KERNEL void QdqStrip(const typename Float::Word* x, float amax, const Mode& mode, int64_t stride, int64_t cols,
                           typename Float::Word* y) {
  float tile_amax[kStripCols / kBlock];
  const int64_t tiles = cols / kBlock;
  TileAmax<Float>(x, stride, cols, tile_amax);
  const RunScales scales(tiles, amax, mode, [&](const TensorScale& tensor, uint8_t* scales, float* multipliers) {
    if (mode.search.present()) {
      SearchTileScales<Float>(x, stride, tile_amax, tiles, tensor, mode.search, scales, multipliers);
    } else {
      BlockScales(tile_amax, tiles, tensor, scales, multipliers);
    }
  });
  for (int64_t row = 0; row < kBlock; ++row) QdqRow<Float>(x + row * stride, scales, cols, y + row * stride);
}

template <typename Float, typename Element>
NVFP4_KERNEL void QdqMxRun(const typename Float::Word* x, bool floor, int64_t count, typename Float::Word* y) {
  float amax[kRun / kMxBlock], factors[kRun / kMxBlock], multipliers[kRun], values[kRun];
  uint8_t scales[kRun / kMxBlock];
  const int64_t blocks = count / kMxBlock;
  RowAmax<Float, kMxBlock>(x, blocks, amax);
  MxScales<Element>(amax, blocks, floor, scales, factors);
  Repeat<kMxBlock>(factors, blocks, multipliers);
  for (int64_t block = 0; block < blocks; ++block) factors[block] = E8M0Value(scales[block]);
  Repeat<kMxBlock>(factors, blocks, values);
  for (int64_t i = 0; i < count; ++i) {
    y[i] = Float::Narrow(Element::Value(Element::Encode(Float::Widen(x[i]) * multipliers[i])) * values[i]);
  }
}

template <typename Float>
void Qdq(ffi::ThreadPool& pool, const Call& call) {
  auto* x = call.data<const typename Float::Word>(Role::kX);
  auto* y = static_cast<typename Float::Word*>(ResultData(call.buffer(Role::kY)));
  auto* amax = call.data<const float>(Role::kAmax);
  if (!call.mode.tile()) {
    const bool floor = call.mode.scale_floor;
    ForEachRun(pool, call, [&](int64_t index, int64_t start, int64_t count) {
      if (call.mode.format == Format::kMxfp8) return QdqMxRun<Float, E4M3>(x + start, floor, count, y + start);
      if (call.mode.format == Format::kMxfp8E5m2) return QdqMxRun<Float, E5M2>(x + start, floor, count, y + start);
      QdqRun<Float>(x + start, amax[index], call.mode, count, y + start);
    });
    return;
  }
  const int64_t strips = call.rows / kBlock, across = (call.cols + kStripCols - 1) / kStripCols;
  const int64_t unit_elements = kBlock * std::min(call.cols, kStripCols);
  ParallelFor(pool, call.batch * strips * across, unit_elements, [&](int64_t unit) {
    const int64_t strip = unit / across, col = unit % across * kStripCols;
    const int64_t start = strip * kBlock * call.cols + col;
    QdqStrip<Float>(x + start, amax[strip / strips], call.mode, call.cols, std::min(kStripCols, call.cols - col),
                    y + start);
  });
}

ffi::Error RunQdq(ffi::ThreadPool& pool, const Call& call) {
  if (call.size() > 0) DispatchFloat(call.dtype, [&](auto type) { Qdq<decltype(type)>(pool, call); });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jax_nvfp4

NVFP4_DEFINE_CPU_HANDLER(nvfp4_qdq, kQdq, RunQdq);
