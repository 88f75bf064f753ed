// Where handlers write. XLA's large results are freshly mapped memory, and mapping it in pages of 4 KiB, one fault
// each, can cost more than the computation: ask for huge pages instead.
#pragma once

#include <sys/mman.h>

#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace jax_nvfp4 {

// The memory of a result that will be written as a whole.
inline void* ResultData(const xla::ffi::AnyBuffer& result) {
  void* data = result.untyped_data();
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const uintptr_t address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = (address + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (address + result.size_bytes()) / kHugePage * kHugePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // advice: may be refused
#endif
  return data;
}

}  // namespace jax_nvfp4
