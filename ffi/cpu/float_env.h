// The floating-point environment of the contract: XLA runs its CPU threads with subnormals flushed, so a
// handler switches that off on every thread it computes on and puts it back.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace jax_nvfp4 {

class KeepSubnormals {
 public:
  KeepSubnormals() : saved_(Read()) { Write(saved_ & ~kFlush); }
  ~KeepSubnormals() { Write(saved_); }
  KeepSubnormals(const KeepSubnormals&) = delete;
  KeepSubnormals& operator=(const KeepSubnormals&) = delete;

 private:
#if defined(__x86_64__)
  using Register = uint32_t;
  static constexpr Register kFlush = 0x8040;  // MXCSR: FTZ and DAZ
  static Register Read() { return _mm_getcsr(); }
  static void Write(Register value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Register = uint64_t;
  static constexpr Register kFlush = Register{1} << 24;  // FPCR: FZ
  static Register Read() {
    Register value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void Write(Register value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
#error "unknown architecture: say here how subnormal flushing is switched off"
#endif

  Register saved_;
};

}  // namespace jax_nvfp4
