"""What quantizing returns: the oracle's counterpart of `jax_nvfp4.BlockScaled`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from jax_nvfp4.spec import QuantSpec


@dataclass(frozen=True, eq=False)
class Quantized:
    """A quantized operand of shape (..., M, K).

    Attributes:
        codes: for axis -1 uint8 (..., M, K/2), two E2M1 codes a byte, low nibble first, or the elements themselves
            (..., M, K) for MXFP8. For axis -2 laid out transposed, (..., K, M/2) or (..., K, M).
        scales: one per block, (..., R, C/block) of an operand that is laid out as (..., R, C), or swizzled (section 9).
        amax: float32 (...,), (..., M) where `spec.scope` is "row", (..., E) where it is "group"; None for MXFP8.
        spec: how it was quantized.
        axis: the axis of the operand that blocks run along, -1 or -2.
        group_sizes: int64 (..., E), the rows of each group where `spec.scope` is "group", else None.
    """

    codes: np.ndarray
    scales: np.ndarray
    amax: np.ndarray | None
    spec: QuantSpec
    axis: int
    group_sizes: np.ndarray | None = None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """(..., R, C): the shape of the operand as it is laid out, blocks along the last axis."""
        *batch, rows, stored = self.codes.shape
        return (*batch, rows, stored * self.spec.facts.codes_per_byte)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the operand that was quantized."""
        *batch, rows, columns = self.stored_shape
        return (*batch, rows, columns) if self.axis == -1 else (*batch, columns, rows)

    @property
    def T(self) -> Quantized:
        """The transpose of the last two axes: the same bytes, only the axis that blocks run along is renamed."""
        return replace(self, axis=-3 - self.axis)
