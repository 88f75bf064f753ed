"""Buffers: what they are compiled with, views of global memory whose accesses are wide, registers."""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Int64, Uint32
from cutlass.cute.runtime import make_fake_compact_tensor


def fake(word, align: int):
    """What a kernel is compiled with in place of a flat buffer of `word`, aligned to `align` bytes, of any length."""
    return make_fake_compact_tensor(word, (cute.sym_int64(),), assumed_align=align)


def groups(buffer, dtype, size: int):
    """A buffer of global memory as (buffer bytes / group bytes, size) elements of dtype."""
    count = Int64(cute.size(buffer)) * buffer.element_type.width // (size * dtype.width)
    return cute.make_tensor(
        cute.recast_ptr(buffer.iterator, dtype=dtype), cute.make_layout((count, size), stride=(size, 1))
    )


def registers(size: int):
    """A fragment of Uint32 registers, to be indexed with compile-time constants only."""
    return cute.make_rmem_tensor(size, Uint32)


def store(words: list, destination) -> None:
    """Write words of registers to as many neighbouring words of memory, in one access where its layout allows."""
    fragment = registers(len(words))
    for i, word in enumerate(words):
        fragment[i] = word
    cute.autovec_copy(fragment, destination)
