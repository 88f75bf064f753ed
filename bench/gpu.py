"""GPU rates of the custom calls, against the device's copy rate and XLA's jax.numpy version.

    python bench/gpu.py [--shapes 16384x8192,7168x2048] [--rounds 7] [--dtype bfloat16] [--check]

One program applies an operation to several input buffers in turn, so that no operand is in the cache; an
optimization barrier keeps XLA from merging the repetitions. Programs are dispatched back to back and timed by the
host, so launch gaps count. The copy, the operation and XLA's versions are timed round by round in one run. Rates
count every input and output byte once; "of copy" is the rate relative to the best copy of the run, read plus
written. XLA's time is its fastest version's; a * says that its result differs from the contract in more than 1 % of
the elements, because XLA leaves out narrowing casts between float32. --check runs everything once on tiny operands, on
any device, for a test: the numbers it prints mean nothing, and no file is written.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import harness
import jax
import jax.numpy as jnp
from table import MEASURED, Measured

from jax_nvfp4.formats import FLOAT_DTYPES, MXFP8_FORMAT

Shape = tuple[int, int]

# DeepSeek-V3's two expert shapes, four times those, and one matrix of 2^27 elements.
SHAPES: tuple[Shape, ...] = ((16384, 8192), (7168, 2048), (2048, 7168), (28672, 8192), (8192, 28672))
SMALL: Shape = (MXFP8_FORMAT.block, 1024 // MXFP8_FORMAT.block)
CHECKED: Shape = (32, 64)


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: of which medians are taken.
        cold_bytes: what one program reads at least, several times the L2 cache.
        copies: how many operands it reads at least.
        program_seconds: dispatched back to back in one measurement.
        small_calls: likewise, of calls on few elements.
    """

    rounds: int = 7
    cold_bytes: int = 1 << 28
    copies: int = 6
    program_seconds: float = 0.03
    small_calls: int = 200


CHECK = Effort(rounds=1, cold_bytes=0, copies=1, program_seconds=0, small_calls=1)


@functools.partial(jax.jit, static_argnums=0)
def chained(function: Callable, sets: list) -> list:
    """`function` of one set of operands after the other. XLA drops results that nobody gets, so all are returned."""
    results: list = [None]
    for operands in sets:
        operands, _ = jax.lax.optimization_barrier((operands, results[-1]))
        results.append(function(*operands))
    return results


def cold_timer(function: Callable, sets: list, effort: Effort) -> Callable[[], float]:
    """Seconds of one application of `function`."""

    def seconds(programs: int) -> float:
        start = time.perf_counter()
        for _ in range(programs):
            results = chained(function, sets)
        jax.block_until_ready(results)
        return (time.perf_counter() - start) / (programs * len(sets))

    seconds(1)
    programs = max(2, min(50, round(effort.program_seconds / (seconds(1) * len(sets)))))
    return lambda: seconds(programs)


def measure_shape(
    shape: Shape, dtype: str, effort: Effort, table: Sequence[Measured] = MEASURED
) -> tuple[float, dict[str, dict]]:
    """The best copy rate (bytes/s) seen at one shape, and per row the microseconds of the call, of XLA and its rate."""
    x_bytes = shape[0] * shape[1] * jnp.dtype(dtype).itemsize
    keys = jax.random.split(jax.random.key(0), max(effort.copies, -(-effort.cold_bytes // x_bytes)))
    xs = [jax.jit(jax.random.normal, static_argnums=(1, 2))(key, shape, dtype) for key in keys]
    copy = cold_timer(jnp.copy, [(x,) for x in xs], effort)

    copy_rate, results = 0.0, {}
    for measured in table:
        sets = [measured.operands(x) for x in xs]
        xla_versions = measured.xla
        timers = {"call": cold_timer(measured.call, sets, effort), "copy": copy}
        timers |= {style: cold_timer(f, sets, effort) for style, f in xla_versions.items()}
        seconds = harness.medians(timers, effort.rounds)
        xla = min(xla_versions, key=lambda style: seconds[style])
        expected, others = (chained(f, sets)[1] for f in (measured.call, xla_versions[xla]))
        copy_rate = max(copy_rate, 2 * x_bytes / seconds["copy"])
        results[measured.name] = {
            "us": 1e6 * seconds["call"],
            "xla_us": 1e6 * seconds[xla],
            "xla_differs": not measured.is_close(others, expected),
            "tb_per_s": measured.bytes_moved(shape, dtype) / seconds["call"] / 1e12,
        }
    return copy_rate, results


def measure_small(dtype: str, effort: Effort, table: Sequence[Measured] = MEASURED) -> dict[str, float]:
    """Microseconds per dispatched call on 1024 elements, of every row and of one elementwise XLA operation."""
    x = jnp.ones(SMALL, dtype)

    def timer(function: Callable, operands: tuple) -> Callable[[], float]:
        compiled = jax.jit(function)

        def seconds() -> float:
            start = time.perf_counter()
            for _ in range(effort.small_calls):
                result = compiled(*operands)
            jax.block_until_ready(result)
            return (time.perf_counter() - start) / effort.small_calls

        return seconds

    timers = {"x + 1 (XLA)": timer(lambda x: x + 1, (x,))}
    timers |= {measured.name: timer(measured.call, measured.operands(x)) for measured in table}
    return {name: 1e6 * seconds for name, seconds in harness.medians(timers, effort.rounds).items()}


def bench(shapes: Sequence[Shape], dtype: str, effort: Effort, table: Sequence[Measured] = MEASURED) -> dict:
    """Measure every row at every shape and print the tables."""
    by_shape = {shape: measure_shape(shape, dtype, effort, table) for shape in shapes}
    roof = max(copy_rate for copy_rate, _ in by_shape.values())
    small = measure_small(dtype, effort, table)
    rows = []
    for (m, k), (copy_rate, results) in by_shape.items():
        rows.append((f"{m}x{k} copy", "", f"{copy_rate / 1e12:.2f}", f"{copy_rate / roof:.0%}", "", "", "-"))
        for measured in table:
            r = results[measured.name]
            r["share_of_copy"], r["times_xla"] = 1e12 * r["tb_per_s"] / roof, r["xla_us"] / r["us"]
            rows.append(
                (
                    f"{m}x{k} {measured.name}",
                    f"{r['us']:.1f}",
                    f"{r['tb_per_s']:.2f}",
                    f"{r['share_of_copy']:.1%}",
                    f"{r['xla_us']:.1f}{'*' if r['xla_differs'] else ' '}",
                    f"{r['times_xla']:.2f}x",
                    ", ".join(wanted for wanted, _ in measured.missed("gpu", r)) or "-",
                )
            )
    print(f"{jax.devices()[0].device_kind}, {dtype}, copy roof {roof / 1e12:.2f} TB/s")
    harness.print_table(("shape, operation", "us", "TB/s", "of copy", "xla us", "vs xla", "missed"), rows)
    print("\n1024 elements, microseconds per dispatched call")
    harness.print_table(("operation", "us"), [(name, f"{us:.1f}") for name, us in small.items()])
    return {
        "copy_roof_tb_per_s": roof / 1e12,
        "small_us": small,
        "shapes": {f"{m}x{k}": results for (m, k), (_, results) in by_shape.items()},
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = ",".join(f"{m}x{k}" for m, k in SHAPES)
    parser.add_argument("--shapes", default=default, help="comma-separated MxK, multiples of 16")
    parser.add_argument("--rounds", type=int, default=Effort.rounds)
    parser.add_argument("--dtype", choices=FLOAT_DTYPES, default="bfloat16", help="of x")
    parser.add_argument("--check", action="store_true", help="once, on tiny operands; nothing is written")
    arguments = parser.parse_args(argv)
    device = jax.devices()[0]
    if arguments.check:
        bench([CHECKED], arguments.dtype, CHECK)
        return
    if device.platform != "gpu":
        parser.error(f"needs an NVIDIA GPU that JAX uses, found {device.device_kind}; bench/cpu.py measures CPUs")
    shapes = [tuple(map(int, shape.split("x"))) for shape in arguments.shapes.split(",")]
    effort = replace(Effort(), rounds=arguments.rounds)
    harness.write("gpu", device, arguments.dtype, **bench(shapes, arguments.dtype, effort))


if __name__ == "__main__":
    main()
