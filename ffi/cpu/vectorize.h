// How kernels are compiled: each twice on x86-64, for the baseline and for AVX2, chosen when the library loads.
// Everything a kernel calls is forced inline, so that it is compiled for the kernel's target. GCC 11 knows no
// arch=x86-64-v3, and chooses its arch=haswell on that very processor alone.
#pragma once

#define NVFP4_INLINE inline __attribute__((always_inline))

// The choice is made by an ifunc, which musl and clang lack, and which runs before the address sanitizer has started.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define NVFP4_KERNEL __attribute__((noinline, target_clones("default", "avx2")))
#else
#define NVFP4_KERNEL __attribute__((noinline))
#endif
