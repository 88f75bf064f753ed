// nvfp4_quantize: floats to codes and block scales, along rows, along columns, or both from one read, of matrices or of
// groups of rows.
#include "handler.h"
#include "job.h"
#include "quantize_mxfp8.h"
#include "quantize_nvfp4.h"

namespace jax_nvfp4 {
namespace {

template <typename Float>
void QuantizeNvfp4(ffi::ThreadPool& pool, const Job& job) {
  ForEachUnit(
      pool, job,
      [&](int64_t batch, int64_t row, int64_t col, int64_t cols) { QuantizeRun<Float>(job, batch, row, col, cols); },
      [&](int64_t batch, int64_t row, int64_t rows, int64_t col, int64_t cols) {
        QuantizeStrips<Float>(job, batch, row, rows, col, cols);
      });
}

template <typename Float, typename Element>
void QuantizeMxfp8(ffi::ThreadPool& pool, const Job& job) {
  ForEachUnit(
      pool, job,
      [&](int64_t batch, int64_t row, int64_t col, int64_t cols) {
        QuantizeMxRun<Float, Element>(job, batch, row, col, cols);
      },
      [&](int64_t batch, int64_t row, int64_t rows, int64_t col, int64_t cols) {
        QuantizeMxStrips<Float, Element>(job, batch, row, rows, col, cols);
      });
}

ffi::Error RunQuantize(ffi::ThreadPool& pool, const Call& call) {
  if (call.size() == 0) return ffi::Error::Success();
  const Job job(call);
  if (ffi::Error error = job.scopes.Check(); error.failure()) return error;
  DispatchFloat(call.dtype, [&](auto type) {
    using Float = decltype(type);
    switch (call.mode.format) {
      case Format::kNvfp4:
        return QuantizeNvfp4<Float>(pool, job);
      case Format::kMxfp8:
        return QuantizeMxfp8<Float, E4M3>(pool, job);
      case Format::kMxfp8E5m2:
        return QuantizeMxfp8<Float, E5M2>(pool, job);
    }
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jax_nvfp4

NVFP4_DEFINE_CPU_HANDLER(nvfp4_quantize, kQuantize, RunQuantize);
