// Splits a loop over XLA's thread pool. The calling thread takes part, and waits only for chunks that another
// thread has already claimed: a saturated pool makes a call slower, never deadlocks it.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "float_env.h"
#include "xla/ffi/api/ffi.h"

namespace jax_nvfp4 {

constexpr int64_t kChunkElements = 1 << 16;  // enough work to pay for waking a thread

// Calls body(unit) for every unit in [0, units), with subnormals kept. A unit holds `unit_elements` elements.
template <typename Body>
void ParallelFor(xla::ffi::ThreadPool& pool, int64_t units, int64_t unit_elements, const Body& body) {
  const int64_t per_chunk = std::max<int64_t>(1, kChunkElements / unit_elements);
  const int64_t chunks = (units + per_chunk - 1) / per_chunk;

  struct Progress {
    std::atomic<int64_t> next{0};
    int64_t done = 0;
    std::mutex mutex;
    std::condition_variable all_done;
  };
  auto progress = std::make_shared<Progress>();
  // A helper that starts after the caller has returned finds no chunk left, so it never touches `body`.
  auto work = [progress, units, per_chunk, chunks, &body] {
    KeepSubnormals keep_subnormals;
    int64_t finished = 0;
    for (int64_t chunk; (chunk = progress->next.fetch_add(1)) < chunks; ++finished) {
      const int64_t end = std::min(units, (chunk + 1) * per_chunk);
      for (int64_t unit = chunk * per_chunk; unit < end; ++unit) body(unit);
    }
    if (finished == 0) return;
    std::lock_guard<std::mutex> lock(progress->mutex);
    progress->done += finished;
    if (progress->done == chunks) progress->all_done.notify_all();
  };

  const int64_t helpers = std::min(chunks - 1, chunks > 1 ? pool.num_threads() : 0);
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule(decltype(work)(work));
  work();
  std::unique_lock<std::mutex> lock(progress->mutex);
  progress->all_done.wait(lock, [&] { return progress->done == chunks; });
}

}  // namespace jax_nvfp4
