// nvfp4_quantize on CUDA: tiles in one launch, whatever the directions, and so both directions of MXFP8; other blocks in
// one launch per direction.
#include "kernels.h"

namespace jax_nvfp4::cuda {
namespace {

// The kernels count the blocks of a matrix, its rows and its columns in 31 bits.
ffi::Error CheckSize(const Call& call) {
  constexpr int64_t kMaxBlocks = (int64_t{1} << 31) - 1024, kMaxSide = (int64_t{1} << 31) - 1;
  const int64_t block = call.mode.facts().block;
  if (call.rows * call.cols / block < kMaxBlocks && call.rows <= kMaxSide && call.cols <= kMaxSide) {
    return ffi::Error::Success();
  }
  return Invalid("a matrix must have fewer than ", kMaxBlocks, " blocks of ", block, " on a GPU, got ", call.rows, " x ",
                 call.cols, ": split it into several, with one amax");
}

ffi::Error QuantizeTiles(cudaStream_t stream, const Call& call) {
  const Mode& mode = call.mode;
  return launch_quantize_tiles(stream, call.dtype, mode, Flat(call, Role::kX), Flat(call, Role::kAmax),
                               Flat(call, Role::kRowCodes), Flat(call, Role::kRowScales), Flat(call, Role::kColCodes),
                               Flat(call, Role::kColScales), call.batch, call.rows, call.cols, mode.row.swizzled,
                               mode.col.swizzled, mode.emax);
}

ffi::Error QuantizeRows(cudaStream_t stream, const Call& call) {
  Mode mode = call.mode;
  mode.col = {};
  return launch_quantize_rows(stream, call.dtype, mode, Flat(call, Role::kX), Flat(call, Role::kAmax),
                              Flat(call, Role::kSeed), Flat(call, Role::kOrigin), Flat(call, Role::kRowCodes),
                              Flat(call, Role::kRowScales), call.batch, call.rows, call.cols, mode.row_scope(),
                              mode.row.swizzled, mode.emax);
}

ffi::Error QuantizeColumns(cudaStream_t stream, const Call& call) {
  Mode mode = call.mode;
  mode.row = {};
  const Role amax = call.has(Role::kColAmax) ? Role::kColAmax : Role::kAmax;
  return launch_quantize_columns(stream, call.dtype, mode, Flat(call, Role::kX), Flat(call, amax),
                                 Flat(call, Role::kSeed), Flat(call, Role::kOrigin), Flat(call, Role::kColCodes),
                                 Flat(call, Role::kColScales), call.batch, call.rows, call.cols, mode.col.swizzled,
                                 mode.col.rht, mode.emax);
}

ffi::Error QuantizeMxfp8Dual(cudaStream_t stream, const Call& call) {
  const Mode& mode = call.mode;
  return launch_quantize_mxfp8_dual(stream, call.dtype, mode, Flat(call, Role::kX), Flat(call, Role::kRowCodes),
                                    Flat(call, Role::kRowScales), Flat(call, Role::kColCodes),
                                    Flat(call, Role::kColScales), call.batch, call.rows, call.cols, mode.row.swizzled,
                                    mode.col.swizzled);
}

ffi::Error RunQuantize(cudaStream_t stream, const Call& call) {
  ffi::Error error = CheckSize(call);
  if (error.failure() || call.size() == 0) return error;
  if (call.mode.tile()) return QuantizeTiles(stream, call);
  if (call.mode.dual() && !call.mode.facts().has_amax) return QuantizeMxfp8Dual(stream, call);
  if (call.mode.row.present) error = QuantizeRows(stream, call);
  if (error.success() && call.mode.col.present) error = QuantizeColumns(stream, call);
  return error;
}

}  // namespace
}  // namespace jax_nvfp4::cuda

NVFP4_DEFINE_CUDA_HANDLER(nvfp4_quantize, kQuantize, RunQuantize);
