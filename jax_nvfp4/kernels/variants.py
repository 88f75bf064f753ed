"""The one table of what is compiled for GPUs: the build, the C++ dispatch, the tests and the benches read it.

A kernel is a module of this package, named like the rows of the table, that defines

* `launch(stream, *tensors, *scalars, *constexprs)`: its `@cute.jit` entry. Tensors are flat, one per buffer;
  scalars are Int64 or Int32.
* `arguments(*, dtype, hopper, **flags)`: what `cute.compile` takes after the stream for one variant.
  `dtype` names the float dtype of the high precision operand, `hopper` says the target is sm_90, and every
  flag of the kernel is a bool.

Nothing here imports the DSL, so the table can be read anywhere.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from jax_nvfp4.formats import FLOAT_DTYPES
from jax_nvfp4.kernels.families import FAMILIES

ARCHS = tuple(FAMILIES)
"""GPU families that kernels are compiled for."""

HOPPER = "sm_90a"
"""The family without hardware FP4 conversion: kernels take its form of every primitive."""


@dataclass(frozen=True)
class Variant:
    """One compiled form of a kernel.

    Attributes:
        kernel: module of this package.
        dtype: float dtype of the high precision operand.
        flags: each compile-time switch of the kernel with its value.
    """

    kernel: str
    dtype: str
    flags: tuple[tuple[str, bool], ...] = ()

    @property
    def name(self) -> str:
        """Unique among variants, a C identifier."""
        return "_".join([self.kernel, self.dtype, *(flag for flag, on in self.flags if on)])


def _every(kernel: str, *flags: str, dtypes: tuple[str, ...] = FLOAT_DTYPES, **fixed: bool) -> list[Variant]:
    """Every combination of dtypes and values of `flags`, with other flags fixed."""
    values = itertools.product((False, True), repeat=len(flags))
    return [Variant(kernel, d, (*zip(flags, on, strict=True), *fixed.items())) for on in values for d in dtypes]


VARIANTS = (
    *_every("amax", "split"),
    *_every("qdq", "tile"),
    *_every("dequantize", unscaled=False),
    *_every("dequantize", dtypes=("bfloat16",), unscaled=True),
    *_every("quantize_rows", "stochastic"),
    *_every("quantize_columns", "stochastic"),
    *_every("quantize_tiles", along_rows=True, along_columns=False),
    *_every("quantize_tiles", along_rows=False, along_columns=True),
    *_every("quantize_tiles", along_rows=True, along_columns=True),
    *_every("selftest", dtypes=("float32",), e2m1_codes=True, e4m3_bytes=False),
    *_every("selftest", dtypes=("float32",), e2m1_codes=False, e4m3_bytes=True),
    *_every("selftest", dtypes=("float32",), e2m1_codes=False, e4m3_bytes=False),
)
