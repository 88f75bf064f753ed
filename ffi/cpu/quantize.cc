// nvfp4_quantize, nvfp4_quantize_stochastic and nvfp4_quantize_dual: floats to codes and block scales, along
// rows, along columns, or both from one read (docs/numerics.md sections 2, 4 and 6).
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>

#include "blocks.h"
#include "operands.h"
#include "pages.h"
#include "parallel.h"
#include "philox.h"
#include "signatures.h"

namespace jax_nvfp4 {
namespace {

// A quantized operand: `rows` rows of `cols` elements as it is laid out, so columnwise output has both swapped.
struct Output {
  uint8_t* codes;
  int64_t rows;
  int64_t cols;
  ScaleWriter scales;

  Output(const ffi::AnyBuffer& codes, const ffi::AnyBuffer& scales, const Operand& x, bool columnwise, bool swizzled)
      : codes(static_cast<uint8_t*>(ResultData(codes))),
        rows(columnwise ? x.cols : x.rows),
        cols(columnwise ? x.rows : x.cols),
        scales(scales.untyped_data(), x.batch, rows, cols / kBlock, swizzled) {}

  NVFP4_INLINE uint8_t* CodesAt(int64_t batch, int64_t row, int64_t col) const {
    return codes + ((batch * rows + row) * cols + col) / 2;
  }
};

// The key and the place of one batch element in the global array (section 6).
struct RandomStream {
  const uint32_t* seed;
  const uint32_t* origin;

  // The words of the block at (row, col), given in elements from the origin.
  NVFP4_INLINE PhiloxWords Row(int64_t row, int64_t col) const {
    return Philox(Block(origin[2], col), Line(origin[1], row), 0, origin[0], seed[0], seed[1]);
  }
  NVFP4_INLINE PhiloxWords Column(int64_t row, int64_t col) const {
    return Philox(Block(origin[1], row), Line(origin[2], col), 1, origin[0], seed[0], seed[1]);
  }

 private:
  static NVFP4_INLINE uint32_t Block(uint32_t origin, int64_t local) {
    return static_cast<uint32_t>((origin + local) / kBlock);
  }
  static NVFP4_INLINE uint32_t Line(uint32_t origin, int64_t local) { return origin + static_cast<uint32_t>(local); }
};

struct Call {
  Operand x;
  const void* data;
  const float* amax;
  bool tile = false;
  const uint32_t* seed = nullptr;  // null: round to nearest
  const uint32_t* origin = nullptr;
  std::optional<Output> row;
  std::optional<Output> col;

  template <typename Float>
  NVFP4_INLINE const typename Float::Word* At(int64_t batch, int64_t r, int64_t c) const {
    return static_cast<const typename Float::Word*>(data) + (batch * x.rows + r) * x.cols + c;
  }
  NVFP4_INLINE RandomStream Stream(int64_t batch) const { return {seed + 2 * batch, origin + 3 * batch}; }
};

// A run of one row in 1x16 blocks.
template <typename Float>
NVFP4_KERNEL void QuantizeRun(const Call& call, int64_t batch, int64_t row, int64_t col, int64_t count) {
  float amax[kRun / kBlock], multipliers[kRun / kBlock], per_element[kRun];
  uint8_t scales[kRun / kBlock], codes[kRun];
  const int64_t blocks = count / kBlock;
  const auto* x = call.At<Float>(batch, row, col);
  const TensorScale tensor(call.amax[call.x.row_scope ? batch * call.x.rows + row : batch]);

  RowAmax<Float>(x, blocks, amax);
  BlockScales(amax, blocks, tensor, scales, multipliers);
  Repeat(multipliers, blocks, per_element);
  if (call.seed == nullptr) {
    NearestCodes<Float>(x, per_element, count, codes);
  } else {
    const RandomStream stream = call.Stream(batch);
    PhiloxWords random[kRun / kBlock];
    for (int64_t block = 0; block < blocks; ++block) random[block] = stream.Row(row, col + block * kBlock);
    StochasticCodes<Float>(x, per_element, reinterpret_cast<const uint8_t*>(random), count, codes);
  }
  Pack(codes, count, call.row->CodesAt(batch, row, col));
  call.row->scales.Store(batch, row, col / kBlock, scales, blocks);
}

constexpr int64_t kUnitStrips = 8;  // the codes of a column of 8 strips fill one cache line

// Packs the 16 codes of each column into one 8-byte word, one column every kUnitStrips words.
NVFP4_INLINE void PackColumns(const uint8_t (*__restrict codes)[kStripCols], int64_t cols,
                              uint64_t* __restrict words) {
  for (int64_t c = 0; c < cols; ++c) {
    uint64_t word = 0;
    for (int64_t r = 0; r < kBlock; ++r) word |= static_cast<uint64_t>(codes[r][c]) << (4 * r);
    words[c * kUnitStrips] = word;
  }
}

// At most kUnitStrips strips of 16 rows, in columnwise 1x16 blocks, or in 16x16 tiles for either output or both.
template <typename Float>
NVFP4_KERNEL void QuantizeStrips(const Call& call, int64_t batch, int64_t first_row, int64_t rows, int64_t col,
                                 int64_t cols) {
  uint64_t words[kStripCols * kUnitStrips];
  uint8_t column_scales[kStripCols][kUnitStrips];
  uint8_t codes[kBlock][kStripCols], scales[kStripCols];
  float amax[kStripCols], multipliers[kStripCols], per_element[kStripCols];
  const int64_t stride = call.x.cols, strips = rows / kBlock, tiles = cols / kBlock;
  const TensorScale tensor(call.amax[batch]);

  for (int64_t strip = 0; strip < strips; ++strip) {
    const int64_t row = first_row + strip * kBlock;
    const auto* x = call.At<Float>(batch, row, col);
    if (call.tile) {
      TileAmax<Float>(x, stride, cols, amax);
      BlockScales(amax, tiles, tensor, scales, multipliers);
      Repeat(multipliers, tiles, per_element);
    } else {
      ColumnAmax<Float>(x, stride, cols, amax);
      BlockScales(amax, cols, tensor, scales, per_element);
    }
    if (call.seed == nullptr) {
      for (int64_t r = 0; r < kBlock; ++r) NearestCodes<Float>(x + r * stride, per_element, cols, codes[r]);
    } else {
      const RandomStream stream = call.Stream(batch);
      uint8_t random[kBlock][kStripCols];
      for (int64_t c = 0; c < cols; ++c) {
        PhiloxWords block = stream.Column(row, col + c);
        for (int64_t r = 0; r < kBlock; ++r) random[r][c] = static_cast<uint8_t>(block.word[r / 4] >> (r % 4 * 8));
      }
      for (int64_t r = 0; r < kBlock; ++r) {
        StochasticCodes<Float>(x + r * stride, per_element, random[r], cols, codes[r]);
      }
    }
    if (call.row) {
      for (int64_t r = 0; r < kBlock; ++r) {
        Pack(codes[r], cols, call.row->CodesAt(batch, row + r, col));
        call.row->scales.Store(batch, row + r, col / kBlock, scales, tiles);
      }
    }
    if (call.col) {
      PackColumns(codes, cols, words + strip);
      for (int64_t c = 0; c < cols; ++c) column_scales[c][strip] = scales[call.tile ? c / kBlock : c];
    }
  }
  if (!call.col) return;
  for (int64_t c = 0; c < cols; ++c) {
    std::memcpy(call.col->CodesAt(batch, col + c, first_row), words + c * kUnitStrips, strips * sizeof(uint64_t));
    call.col->scales.Store(batch, col + c, first_row / kBlock, column_scales[c], strips);
  }
}

template <typename Float>
void Quantize(ffi::ThreadPool& pool, const Call& call) {
  const bool strips = call.tile || call.col;
  const int64_t unit_rows = strips ? kBlock * kUnitStrips : 1;
  const int64_t unit_cols = strips ? kStripCols : kRun;
  const int64_t down = (call.x.rows + unit_rows - 1) / unit_rows, across = (call.x.cols + unit_cols - 1) / unit_cols;
  const int64_t unit_elements = std::min(unit_rows, call.x.rows) * std::min(unit_cols, call.x.cols);
  ParallelFor(pool, call.x.batch * down * across, unit_elements, [&](int64_t unit) {
    const int64_t batch = unit / across / down;
    const int64_t row = unit / across % down * unit_rows, col = unit % across * unit_cols;
    const int64_t rows = std::min(unit_rows, call.x.rows - row), cols = std::min(unit_cols, call.x.cols - col);
    if (strips) {
      QuantizeStrips<Float>(call, batch, row, rows, col, cols);
    } else {
      QuantizeRun<Float>(call, batch, row, col, cols);
    }
  });
}

ffi::Error Run(ffi::ThreadPool& pool, const Call& call) {
  if (call.x.size() > 0) DispatchFloat(call.x.dtype, [&](auto type) { Quantize<decltype(type)>(pool, call); });
  return ffi::Error::Success();
}

Call MakeCall(const Operand& operand, const ffi::AnyBuffer& x, const ffi::AnyBuffer& amax) {
  Call call;
  call.x = operand;
  call.data = x.untyped_data();
  call.amax = static_cast<const float*>(amax.untyped_data());
  return call;
}

ffi::Error QuantizeNearest(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer amax,
                           ffi::Result<ffi::AnyBuffer> codes, ffi::Result<ffi::AnyBuffer> scales, int32_t axis,
                           bool tile, bool swizzled) {
  ffi::ErrorOr<Operand> operand = ParseQuantize(x, amax, axis, tile, swizzled, *codes, *scales);
  if (!operand) return operand.error();
  Call call = MakeCall(*operand, x, amax);
  call.tile = tile;
  (axis == -1 ? call.row : call.col).emplace(*codes, *scales, *operand, axis == -2, swizzled);
  return Run(pool, call);
}

ffi::Error QuantizeStochastic(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer amax, ffi::AnyBuffer seed,
                              ffi::AnyBuffer origin, ffi::Result<ffi::AnyBuffer> codes,
                              ffi::Result<ffi::AnyBuffer> scales, int32_t axis, bool swizzled) {
  ffi::ErrorOr<Operand> operand = ParseQuantizeStochastic(x, amax, seed, origin, axis, swizzled, *codes, *scales);
  if (!operand) return operand.error();
  Call call = MakeCall(*operand, x, amax);
  call.seed = static_cast<const uint32_t*>(seed.untyped_data());
  call.origin = static_cast<const uint32_t*>(origin.untyped_data());
  (axis == -1 ? call.row : call.col).emplace(*codes, *scales, *operand, axis == -2, swizzled);
  return Run(pool, call);
}

ffi::Error QuantizeDual(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer amax,
                        ffi::Result<ffi::AnyBuffer> row_codes, ffi::Result<ffi::AnyBuffer> row_scales,
                        ffi::Result<ffi::AnyBuffer> col_codes, ffi::Result<ffi::AnyBuffer> col_scales, bool swizzled) {
  ffi::ErrorOr<Operand> operand =
      ParseQuantizeDual(x, amax, swizzled, *row_codes, *row_scales, *col_codes, *col_scales);
  if (!operand) return operand.error();
  Call call = MakeCall(*operand, x, amax);
  call.tile = true;
  call.row.emplace(*row_codes, *row_scales, *operand, /*columnwise=*/false, swizzled);
  call.col.emplace(*col_codes, *col_scales, *operand, /*columnwise=*/true, swizzled);
  return Run(pool, call);
}

}  // namespace
}  // namespace jax_nvfp4

NVFP4_DEFINE_HANDLER(nvfp4_quantize, jax_nvfp4::QuantizeNearest,
                     jax_nvfp4::QuantizeSignature<xla::ffi::ThreadPool>());
NVFP4_DEFINE_HANDLER(nvfp4_quantize_stochastic, jax_nvfp4::QuantizeStochastic,
                     jax_nvfp4::QuantizeStochasticSignature<xla::ffi::ThreadPool>());
NVFP4_DEFINE_HANDLER(nvfp4_quantize_dual, jax_nvfp4::QuantizeDual,
                     jax_nvfp4::QuantizeDualSignature<xla::ffi::ThreadPool>());
