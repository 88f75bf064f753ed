"""Which group a row of a packed operand belongs to (docs/numerics.md section 10)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


class Groups:
    """Groups of rows, packed one after the other; the rows past the last one are capacity.

    Attributes:
        sizes: int64 (..., E), the rows of each group.
        starts, ends: int64 (..., E), its first row, and the row after its last one.
        rows: P, the rows of the packed operand.
    """

    def __init__(self, group_sizes: ArrayLike, rows: int):
        sizes = np.asarray(group_sizes)
        if sizes.dtype.kind not in "iu" and sizes.size:
            raise TypeError(f"group_sizes must be integers, got {sizes.dtype}: convert them")
        self.sizes = np.atleast_1d(sizes).astype(np.int64)
        self.ends = np.cumsum(self.sizes, axis=-1)
        self.starts = self.ends - self.sizes
        self.rows = rows

    def check(self, multiple: int) -> None:
        """Raise ValueError for a negative size, a sum above P, or groups that do not hold whole blocks of rows."""
        if self.are_impossible:
            for place, size in np.ndenumerate(self.sizes):
                if size < 0:
                    raise ValueError(f"group_sizes[{place[-1]}] is {size}: a size is never negative")
            raise ValueError(f"group_sizes add up to {self.sizes.sum(-1).max()}, more than the {self.rows} rows of x")
        for index in np.argwhere(self.violate(multiple)):
            where = tuple(index)
            raise ValueError(
                f"group {index[-1]} starts at row {self.starts[where]} and has {self.sizes[where]} rows, which must be "
                f"multiples of {multiple}: pad_groups brings groups to one"
            )
        self.check_rows(multiple)

    def check_rows(self, multiple: int) -> None:
        """Raise ValueError unless x has whole blocks of rows."""
        if self.rows % multiple:
            raise ValueError(f"x must have a multiple of {multiple} rows, got {self.rows}: pad it with zeros")

    @property
    def are_impossible(self) -> bool:
        """Whether a size is negative or the groups do not fit in the rows of x."""
        return bool((self.sizes < 0).any() or (self.sizes.sum(-1) > self.rows).any())

    def violate(self, multiple: int) -> np.ndarray:
        """bool (..., E): groups whose start or size is not a multiple."""
        return (self.starts % multiple != 0) | (self.sizes % multiple != 0)

    def of_rows(self) -> np.ndarray:
        """int64 (..., P): the group of each row, E for capacity."""
        row = np.arange(self.rows)
        return (row[:, None] >= self.ends[..., None, :]).sum(-1)

    def along_blocks(self, of_rows: np.ndarray, axis: int, block: int) -> np.ndarray:
        """A value per row (..., P) with the axes of block scales: (..., P, 1), or (..., 1, P/block) for axis -2."""
        return of_rows[..., :, None] if axis == -1 else of_rows[..., None, ::block]

    def amax_of_blocks(self, amax: np.ndarray, axis: int, block: int) -> np.ndarray:
        """The amax of the group of each block; 0 in capacity.

        Args:
            amax: float32 (..., E).
            axis: that blocks run along.
            block: elements in one.

        Returns:
            float32 (..., P, 1), or (..., 1, P/block) for axis -2.
        """
        with_capacity = np.concatenate([amax, np.zeros((*amax.shape[:-1], 1), np.float32)], -1)
        return self.along_blocks(np.take_along_axis(with_capacity, self.of_rows(), -1), axis, block)

    def capacity_of_blocks(self, axis: int, block: int) -> np.ndarray:
        """bool, whether each block is capacity, in the shape that `amax_of_blocks` returns."""
        return self.along_blocks(self.of_rows() == self.sizes.shape[-1], axis, block)

    def rounded_up(self, multiple: int) -> Groups:
        """Groups that end at the next multiple each; those that do not violate stay where they are."""
        if self.are_impossible:
            return Groups(np.zeros_like(self.sizes), self.rows)
        ends = -(-self.ends // multiple) * multiple
        return Groups(np.diff(ends, prepend=0, axis=-1), self.rows)

    def violating_rows(self, multiple: int) -> np.ndarray:
        """bool (..., P): rows of runs of violating groups, each run rounded up at its end; all if none is possible."""
        if self.are_impossible:
            return np.ones((*self.sizes.shape[:-1], self.rows), bool)
        # A run starts at a multiple, because the group before it ends at one.
        violate = np.concatenate([self.violate(multiple), np.zeros((*self.sizes.shape[:-1], 1), bool)], -1)
        rows = np.take_along_axis(violate, self.of_rows(), -1)
        blocks = rows.reshape(*rows.shape[:-1], self.rows // multiple, multiple).any(-1)
        return np.repeat(blocks, multiple, axis=-1)
