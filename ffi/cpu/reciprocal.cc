// The table of reciprocal.h, unpacked by the build into the file that NVFP4_RCP_APPROX names.
__asm__(
    ".section .rodata\n"
    ".globl jax_nvfp4_rcp_approx\n"
    ".hidden jax_nvfp4_rcp_approx\n"
    "jax_nvfp4_rcp_approx:\n"
    ".incbin \"" NVFP4_RCP_APPROX "\"\n"
    ".previous\n");
