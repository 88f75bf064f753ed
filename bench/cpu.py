"""CPU rates of the custom calls, against the NumPy oracle, XLA's jax.numpy version and a memory copy.

    python bench/cpu.py [--size 4096] [--rounds 5] [--dtype bfloat16] [--check]

All four are timed in turn, round by round, and their medians compared, so the ratios hold on a machine that others
share. Operands are (size, size) with their amax given. --check runs everything once on a tiny operand, for a test: the
numbers it prints mean nothing, and no file is written.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import harness
import jax
import numpy as np
from table import MEASURED, Measured

from jax_nvfp4 import testing
from jax_nvfp4.formats import FLOAT_DTYPES


@dataclass(frozen=True)
class Effort:
    """How much is measured: operands are (size, size), a round makes `calls` calls of what is quick."""

    size: int
    rounds: int
    calls: int = 5
    copy_bytes: int = 1 << 27


CHECK = Effort(size=32, rounds=1, calls=1, copy_bytes=1 << 10)


def measure(measured: Measured, dtype: str, copy: Callable, effort: Effort) -> dict[str, float]:
    """Medians and ratios of one row."""
    x = testing.make("normal", (effort.size, effort.size), dtype)
    operands = jax.block_until_ready(measured.operands(jax.numpy.asarray(x)))
    arrays = tuple(map(np.asarray, operands))
    call, xla = jax.jit(measured.call), {style: jax.jit(version) for style, version in measured.xla.items()}
    expected = call(*operands)
    for style, version in xla.items():
        assert measured.is_close(version(*operands), expected), f"{measured.name}: XLA's {style!r} computes other data"
    timers = {
        "call": lambda: _seconds(lambda: jax.block_until_ready(call(*operands)), effort.calls),
        "oracle": lambda: _seconds(lambda: measured.reference(*arrays)),
        "copy": lambda: _seconds(copy, effort.calls),
        **{f"xla {s}": lambda f=f: _seconds(lambda: jax.block_until_ready(f(*operands))) for s, f in xla.items()},
    }
    seconds = harness.medians(timers, effort.rounds)
    best_xla = min(seconds[f"xla {style}"] for style in xla)
    rate, copy_rate = measured.bytes_moved(x.shape, dtype) / seconds["call"], 2 * effort.copy_bytes / seconds["copy"]
    return {
        "call_ms": 1e3 * seconds["call"],
        "oracle_ms": 1e3 * seconds["oracle"],
        "xla_ms": 1e3 * best_xla,
        "times_oracle": seconds["oracle"] / seconds["call"],
        "times_xla": best_xla / seconds["call"],
        "gb_per_s": rate / 1e9,
        "copy_gb_per_s": copy_rate / 1e9,
        "share_of_copy": rate / copy_rate,
    }


def _seconds(function: Callable, calls: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls


def _copy(size: int, threads: int) -> Callable[[], None]:
    """A copy of `size` bytes that uses `threads` threads."""
    source, target = (np.full(size, value, np.uint8) for value in (1, 0))
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    pool = ThreadPoolExecutor(threads)

    def copy():
        for done in [pool.submit(np.copyto, *part) for part in parts]:
            done.result()

    return copy


def bench(dtype: str, effort: Effort) -> dict[str, dict[str, float]]:
    """Measure every row and print the table."""
    threads = os.cpu_count() or 1
    copy = _copy(effort.copy_bytes, threads)
    results, rows = {}, []
    for measured in MEASURED:
        r = results[measured.name] = measure(measured, dtype, copy, effort)
        rows.append(
            (
                measured.name,
                *(f"{r[key]:.1f}" for key in ("call_ms", "xla_ms", "oracle_ms")),
                f"{r['times_xla']:.1f}x",
                f"{r['times_oracle']:.0f}x",
                f"{r['gb_per_s']:.1f}",
                f"{r['share_of_copy']:.0%}",
                ", ".join(wanted for wanted, _ in measured.missed("cpu", r)) or "-",
            )
        )
    copy_rate = np.median([r["copy_gb_per_s"] for r in results.values()])
    print(f"{effort.size}x{effort.size} {dtype}, {threads} cores, memory copy {copy_rate:.1f} GB/s on all cores")
    header = ("operation", "ms", "xla ms", "oracle ms", "vs xla", "vs oracle", "GB/s", "of copy", "missed")
    harness.print_table(header, rows)
    return results


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4096, help="rows and columns of x")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=FLOAT_DTYPES, default="bfloat16", help="of x")
    parser.add_argument("--check", action="store_true", help="once, on a tiny operand; nothing is written")
    arguments = parser.parse_args(argv)
    device = jax.local_devices(backend="cpu")[0]
    with jax.default_device(device):
        results = bench(arguments.dtype, CHECK if arguments.check else Effort(arguments.size, arguments.rounds))
    if not arguments.check:
        size, threads = arguments.size, os.cpu_count() or 1
        harness.write("cpu", device, arguments.dtype, size=size, threads=threads, cases=results)


if __name__ == "__main__":
    main()
