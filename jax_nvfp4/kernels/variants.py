"""The one table of what is compiled for GPUs: the build compiles it, and the C++ dispatch is generated from it.

A kernel is a module of this package, named like the rows of the table, that defines

* `launch(stream, *tensors, *scalars, variant)`: its `@cute.jit` entry. Tensors are flat, one per buffer; scalars are
  Int64 or Int32; `variant` is the one compile-time value.
* `arguments(variant)`: the fake tensors and the example scalars that `launch` is compiled with.

The variants of a kernel take the same arguments, and at least one of them is in every build.

Nothing here imports the DSL, so the table can be read anywhere.
"""

from __future__ import annotations

import enum
import fnmatch
import itertools
import re
from dataclasses import dataclass, fields, is_dataclass, replace

from jax_nvfp4.formats import FLOAT_DTYPES, MXFP8_E5M2_FORMAT, MXFP8_FORMAT
from jax_nvfp4.mode import Direction, Mode, Search, SearchError


def _words(name: str, value, default) -> list[str]:
    """What a member of a mode adds to the name of a variant: nothing if it has its default value."""
    if value == default:
        return []
    if is_dataclass(value):
        parts = (_words(f.name, getattr(value, f.name), f.default) for f in fields(value))
        return [name, *itertools.chain(*parts)]
    if isinstance(value, enum.IntEnum):
        return [value.name.lower()]
    return [name if value is True else f"{name}{value:g}"]


@dataclass(frozen=True)
class Variant:
    """One compiled form of a kernel.

    Attributes:
        kernel: module of this package.
        dtype: float dtype of the high precision operand.
        mode: `Mode.compiled()` of the calls that it serves, as far as the kernel depends on it.
    """

    kernel: str
    dtype: str
    mode: Mode = Mode()

    @property
    def name(self) -> str:
        """Unique among variants, a C identifier."""
        words = (_words(f.name, getattr(self.mode, f.name), f.default) for f in fields(Mode) if f.name != "format")
        return "_".join([self.kernel, self.dtype, self.mode.format.name, *itertools.chain(*words)])

    def __str__(self) -> str:
        """What the DSL calls the functions that it compiles."""
        return self.name

    def object_name(self, arch: str) -> str:
        """File name without suffix, and symbol prefix, of this variant compiled for a GPU family."""
        return f"{self.name}_{arch}"


def _every(kernel: str, *modes: Mode, dtypes: tuple[str, ...] = FLOAT_DTYPES) -> list[Variant]:
    return [Variant(kernel, dtype, mode) for mode in modes for dtype in dtypes]


def _along_rows(mode: Mode) -> Mode:
    return replace(mode, row=None, col=mode.row)


def _along_both(mode: Mode) -> Mode:
    return replace(mode, col=mode.row)


_RHT = tuple(Direction(stochastic=s, rht=0) for s in (False, True))
_NEAREST, _STOCHASTIC, _TILE = Direction(), Direction(stochastic=True), Direction(tile=True)
_TILES = {"row": _TILE}, {"col": _TILE}, {"row": _TILE, "col": _TILE}
_MXFP8, _MXFP8_E5M2 = (Mode(format, row=_NEAREST) for format in (MXFP8_FORMAT, MXFP8_E5M2_FORMAT))
_MXFP8_ROUNDINGS = _MXFP8, replace(_MXFP8, scale_floor=True)
_COMMON_SEARCHES = tuple(Search(e, fp16) for e in (SearchError.MAE, SearchError.MSE) for fp16 in (False, True))
_SEARCHES = tuple(
    Search(error, fp16, tree)
    for error in (SearchError.MAE, SearchError.MSE, SearchError.ABS_MAX)
    for fp16 in (False, True)
    for tree in (False, True)
)

VARIANTS = (
    *_every("amax", Mode()),
    *_every("qdq", Mode(row=_NEAREST), Mode(row=_TILE)),
    *_every("dequantize", Mode(row=_NEAREST)),
    *_every("decode", Mode(row=_NEAREST), dtypes=("bfloat16",)),
    *_every("quantize_rows", Mode(row=_NEAREST), Mode(row=_STOCHASTIC)),
    *_every("quantize_columns", Mode(col=_NEAREST), Mode(col=_STOCHASTIC)),
    *_every("quantize_columns", *(Mode(col=direction) for direction in _RHT)),
    *_every("amax_columns", Mode(col=_RHT[0])),
    *_every("quantize_tiles", *(Mode(**tiles) for tiles in _TILES)),
    *_every("selftest", Mode(), dtypes=("float32",)),
    *_every("qdq", *(Mode(search=s, row=_NEAREST) for s in _COMMON_SEARCHES), dtypes=("bfloat16", "float16")),
    *_every("quantize_rows", *(Mode(search=s, row=_NEAREST) for s in _COMMON_SEARCHES), dtypes=("bfloat16",)),
    *_every("dequantize", _MXFP8),
    *_every("decode", _MXFP8, dtypes=("bfloat16",)),
    *_every("qdq", *_MXFP8_ROUNDINGS, dtypes=("bfloat16",)),
    *_every("quantize_rows", *_MXFP8_ROUNDINGS, dtypes=("bfloat16",)),
    *_every("quantize_columns", *map(_along_rows, _MXFP8_ROUNDINGS), dtypes=("bfloat16",)),
    *_every("quantize_mxfp8_dual", *map(_along_both, _MXFP8_ROUNDINGS), dtypes=("bfloat16",)),
)
"""What every build holds."""

_FOUR_OVER_SIX = (
    *_every("qdq", *(Mode(search=s, row=d) for s in _SEARCHES for d in (_NEAREST, _TILE))),
    *_every("quantize_rows", *(Mode(search=s, row=_NEAREST) for s in _SEARCHES)),
    *_every("quantize_columns", *(Mode(search=s, col=_NEAREST) for s in _SEARCHES)),
    *_every("quantize_tiles", *(Mode(search=s, **tiles) for s in _SEARCHES for tiles in _TILES)),
)

_BOTH_ROUNDINGS = [replace(m, scale_floor=f) for m in (_MXFP8, _MXFP8_E5M2) for f in (False, True)]
_OTHER_MXFP8 = (
    *_every("dequantize", _MXFP8_E5M2),
    *_every("decode", _MXFP8_E5M2, dtypes=("bfloat16",)),
    *_every("qdq", *_BOTH_ROUNDINGS),
    *_every("quantize_rows", *_BOTH_ROUNDINGS),
    *_every("quantize_columns", *map(_along_rows, _BOTH_ROUNDINGS)),
    *_every("quantize_mxfp8_dual", *map(_along_both, _BOTH_ROUNDINGS)),
)

OPTIONAL = tuple(variant for variant in (*_FOUR_OVER_SIX, *_OTHER_MXFP8) if variant not in VARIANTS)
"""What a build holds only if it is asked to: `JAX_NVFP4_VARIANTS` names them, see `select`."""


def select(wanted: str) -> tuple[Variant, ...]:
    """What to build.

    Args:
        wanted: the optional variants to build beside the others: names, which may hold wildcards, separated by commas,
            or "all".

    Raises:
        ValueError: a name that fits no variant.
    """
    patterns = ["*"] if wanted == "all" else [p for p in re.split("[,; ]+", wanted) if p]
    for pattern in patterns:
        if not fnmatch.filter([v.name for v in (*VARIANTS, *OPTIONAL)], pattern):
            raise ValueError(f"JAX_NVFP4_VARIANTS: no variant of kernels/variants.py is called {pattern!r}")
    return *VARIANTS, *(v for v in OPTIONAL if any(fnmatch.fnmatchcase(v.name, p) for p in patterns))
