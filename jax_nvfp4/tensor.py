"""`BlockScaled`: a quantized array as a pytree, with its dtype-safe file format."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import jax
import ml_dtypes
import numpy as np

from jax_nvfp4.spec import QuantSpec


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("codes", "scales", "amax", "group_sizes"),
    meta_fields=("spec", "axis"),
)
@dataclass(frozen=True)
class BlockScaled:
    """A quantized operand of shape (..., M, K): codes, block scales and amax.

    Attributes:
        codes: uint8, two E2M1 codes a byte, low nibble first: (..., M, K/2), or (..., K, M/2) when `axis` is -2.
        scales: float8_e4m3fn, one per block of 16 codes, laid out as `spec.scale_layout` says.
        amax: float32, (...,), one per row of the codes where `spec.scope` is "row", (..., E) where it is "group".
        spec: how it was quantized (static).
        axis: which axis of the operand the blocks run along (static). Blocks along -2 are stored transposed, so
            that in memory blocks are always contiguous.
        group_sizes: int32 (..., E), the rows of each group where `spec.scope` is "group", else None.
    """

    codes: jax.Array
    scales: jax.Array
    amax: jax.Array | None
    spec: QuantSpec
    axis: int
    group_sizes: jax.Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the operand that was quantized."""
        *batch, rows, packed = self.codes.shape
        size = packed * self.spec.facts.codes_per_byte
        return (*batch, rows, size) if self.axis == -1 else (*batch, size, rows)

    @property
    def ndim(self) -> int:
        """The rank of the operand that was quantized."""
        return self.codes.ndim

    @property
    def T(self) -> BlockScaled:
        """The transpose of the last two axes. The same bytes: only the axis the blocks run along is renamed."""
        return replace(self, axis=-3 - self.axis)


def save(path: str | Path, t: BlockScaled) -> None:
    """Write `t` to an .npz file. Scales are stored as bytes, because NumPy files lose the float8 dtype."""
    scales = np.asarray(t.scales).view(np.uint8)
    spec = t.spec
    static = np.array([spec.format, *map(str, spec.block), spec.scope, spec.scale_layout, str(t.axis)])
    with open(path, "wb") as file:
        np.savez(file, codes=np.asarray(t.codes), scales=scales, amax=np.asarray(t.amax), static=static)


def load(path: str | Path) -> BlockScaled:
    """Read what `save` wrote: the same bytes, dtypes, spec and axis."""
    with np.load(path) as file:
        form, rows, columns, scope, layout, axis = file["static"].tolist()
        spec = QuantSpec(form, (int(rows), int(columns)), scope, layout)
        scales = file["scales"].view(ml_dtypes.float8_e4m3fn)
        codes, scales, amax = map(jax.numpy.asarray, (file["codes"], scales, file["amax"]))
        return BlockScaled(codes, scales, amax, spec, int(axis))
