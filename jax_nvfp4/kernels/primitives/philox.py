"""Philox-4x32-10 and the counters of stochastic rounding (section 6)."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int64, Uint32

from jax_nvfp4.formats import NVFP4_FORMAT
from jax_nvfp4.kernels.primitives import memory, ptx

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_INCREMENTS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_STREAM_WORDS = 2 * _ROUNDS + 4

ALONG_ROWS, ALONG_COLUMNS = 0, 1
"""c2, the direction of the blocks."""


def philox(counter, round_keys) -> tuple:
    """Four random words of a counter (four Uint32) and the keys of the rounds (20 Uint32, two per round)."""
    c0, c1, c2, c3 = counter
    for i in range(_ROUNDS):
        low0, high0 = ptx.multiply_wide(c0, Uint32(_MULTIPLIERS[0]))
        low1, high1 = ptx.multiply_wide(c2, Uint32(_MULTIPLIERS[1]))
        c0, c1, c2, c3 = high1 ^ c1 ^ round_keys[2 * i], low1, high0 ^ c3 ^ round_keys[2 * i + 1], low0
    return c0, c1, c2, c3


def round_keys(key) -> list:
    """The keys of the rounds of a key (two Uint32)."""
    return [key[j] + Uint32(i * _KEY_INCREMENTS[j] & 0xFFFFFFFF) for i in range(_ROUNDS) for j in (0, 1)]


def shared_stream():
    """Shared memory for what the draws of one matrix have in common."""
    return cute.make_tensor(
        cute.arch.alloc_smem(Uint32, _STREAM_WORDS, alignment=16),
        cute.make_layout((_STREAM_WORDS // 4, 4), stride=(4, 1)),
    )


@cute.jit
def open_stream(stream: cute.Tensor, seed: cute.Tensor, origin: cute.Tensor, matrix: Int64):
    """Fill `stream` for one matrix; a barrier must follow. Called by one thread."""
    words = round_keys((seed[2 * matrix], seed[2 * matrix + 1])) + [origin[3 * matrix + i] for i in range(3)]
    for i in cutlass.range_constexpr(_STREAM_WORDS - 1):
        stream[i // 4, i % 4] = words[i]


def draw(stream, direction: int, block, across) -> tuple:
    """The draw of a block: `block` blocks along the quantized axis, `across` elements along the other one."""
    words = memory.registers(_STREAM_WORDS)
    cute.autovec_copy(stream, cute.make_tensor(words.iterator, stream.layout))
    batch_word, *first = (words[2 * _ROUNDS + i] for i in range(3))
    along, other = first[::-1] if direction == ALONG_ROWS else first
    counter = (along // NVFP4_FORMAT.block + Uint32(block), other + Uint32(across), Uint32(direction), batch_word)
    return philox(counter, words)
