"""CPU rates of the custom calls, against the NumPy oracle, XLA's jax.numpy version and a memory copy.

    python bench/cpu.py [--size 4096] [--rounds 5]

All four are timed in turn, round by round, and their medians compared, so the ratios hold on a machine that others
share. Operands are (size, size) bfloat16 with their amax given.
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import harness
import jax
import numpy as np
import xla_baseline

import jax_nvfp4
from jax_nvfp4 import NVFP4_2D, oracle, testing

COPY_BYTES = 1 << 27
CALLS = 5  # of the custom call and of the copy, per round


@dataclass(frozen=True)
class Case:
    """One operation in its three versions, each a function of `operands`; bytes count every operand and result once."""

    name: str
    call: Callable
    reference: Callable
    xla: dict[str, Callable]
    operands: tuple
    bytes_moved: float
    oracle_target: float = 100  # times the oracle's speed


def cases(size: int) -> list[Case]:
    x = testing.make("normal", (size, size), "bfloat16")
    quantized_bytes = x.size * (1 / 2 + 1 / 16)
    amax = oracle.amax(x)
    codes, scales, _ = oracle.quantize(x, amax=amax)

    def quantize(name: str, axis: int = -1, spec=jax_nvfp4.NVFP4) -> Case:
        return Case(
            name,
            lambda x, amax: testing.arrays(jax_nvfp4.quantize(x, spec, axis=axis, amax=amax))[:2],
            lambda x, amax: oracle.quantize(x, spec, axis=axis, amax=amax)[:2],
            _styles(xla_baseline.quantize, axis=axis, tile=spec.is_tile),
            (x, amax),
            x.nbytes + quantized_bytes,
        )

    def dequantize(codes, scales, amax):
        return jax_nvfp4.dequantize(jax_nvfp4.BlockScaled(codes, scales, amax, jax_nvfp4.NVFP4, -1))

    return [
        quantize("quantize"),
        quantize("quantize axis -2", axis=-2),
        quantize("quantize 16x16", spec=NVFP4_2D),
        Case(
            "dequantize",
            dequantize,
            oracle.dequantize,
            _styles(xla_baseline.dequantize),
            (codes, scales, amax),
            quantized_bytes + x.nbytes,
        ),
        Case(
            "qdq",
            lambda x, amax: jax_nvfp4.qdq(x, amax=amax),
            lambda x, amax: oracle.qdq(x, amax=amax),
            _styles(xla_baseline.qdq),
            (x, amax),
            2 * x.nbytes,
        ),
        Case("amax", jax_nvfp4.amax, oracle.amax, {"": xla_baseline.amax}, (x,), x.nbytes, oracle_target=1),
    ]


def _styles(function: Callable, **arguments) -> dict[str, Callable]:
    return {style: functools.partial(function, style=style, **arguments) for style in xla_baseline.STYLES}


def measure(case: Case, copy: Callable, rounds: int) -> dict[str, float]:
    """Medians and ratios of one case."""
    call, operands = jax.jit(case.call), jax.device_put(case.operands)
    xla = {style: jax.jit(version) for style, version in case.xla.items()}
    expected = call(*operands)
    for style, version in xla.items():
        assert harness.close(version(*operands), expected), f"{case.name}: XLA version {style!r} computes other data"
    timers = {
        "call": lambda: _seconds(lambda: jax.block_until_ready(call(*operands)), CALLS),
        "oracle": lambda: _seconds(lambda: case.reference(*case.operands)),
        "copy": lambda: _seconds(copy, CALLS),
        **{f"xla {s}": lambda f=f: _seconds(lambda: jax.block_until_ready(f(*operands))) for s, f in xla.items()},
    }
    seconds = harness.medians(timers, rounds)
    best_xla = min(seconds[f"xla {style}"] for style in xla)
    rate, copy_rate = case.bytes_moved / seconds["call"], 2 * COPY_BYTES / seconds["copy"]
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


def _copy(threads: int) -> Callable[[], None]:
    """A copy of COPY_BYTES that uses `threads` threads."""
    source, target = (np.full(COPY_BYTES, value, np.uint8) for value in (1, 0))
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    pool = ThreadPoolExecutor(threads)

    def copy():
        for done in [pool.submit(np.copyto, *part) for part in parts]:
            done.result()

    return copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4096, help="rows and columns of x")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    threads = os.cpu_count() or 1
    copy = _copy(threads)

    results, rows = {}, []
    for case in cases(arguments.size):
        r = results[case.name] = measure(case, copy, arguments.rounds)
        missed = [f"oracle {case.oracle_target}x"] * (r["times_oracle"] < case.oracle_target)
        missed += ["xla 1x"] * (r["times_xla"] < 1)
        rows.append(
            (
                case.name,
                *(f"{r[key]:.1f}" for key in ("call_ms", "xla_ms", "oracle_ms")),
                f"{r['times_xla']:.1f}x",
                f"{r['times_oracle']:.0f}x",
                f"{r['gb_per_s']:.1f}",
                f"{r['share_of_copy']:.0%}",
                ", ".join(missed) or "-",
            )
        )
    copy_rate = np.median([r["copy_gb_per_s"] for r in results.values()])
    print(f"{arguments.size}x{arguments.size} bfloat16, {threads} cores, memory copy {copy_rate:.1f} GB/s on all cores")
    header = ("operation", "ms", "xla ms", "oracle ms", "vs xla", "vs oracle", "GB/s", "of copy", "missed")
    harness.print_table(header, rows)
    harness.write("cpu", size=arguments.size, threads=threads, cases=results)


if __name__ == "__main__":
    main()
