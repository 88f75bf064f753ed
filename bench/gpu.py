"""GPU rates of the custom calls, against the device's copy rate and XLA's jax.numpy version.

    python bench/gpu.py [--shapes 16384x8192,7168x2048] [--rounds 7]

One program applies an operation to several input buffers in turn, so that no operand is in the cache; an
optimization barrier keeps XLA from merging the repetitions. Programs are dispatched back to back and timed by the
host, so launch gaps count. The copy, the operation and XLA's versions are timed round by round in one run. Rates
count every input and output byte once; "of copy" is the rate relative to the best copy of the run, read plus
written. XLA's time is its fastest version's; a * says that its result differs from the contract in more than 1 % of
the elements, because XLA leaves out narrowing casts between float32.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import harness
import jax
import jax.numpy as jnp
import xla_baseline

import jax_nvfp4
from jax_nvfp4 import NVFP4, NVFP4_2D, QuantSpec
from jax_nvfp4.formats import BLOCK

# DeepSeek-V3's two expert shapes, four times those, and one matrix of 2^27 elements.
SHAPES = ((16384, 8192), (7168, 2048), (2048, 7168), (28672, 8192), (8192, 28672))
SMALL = (BLOCK, 1024 // BLOCK)
SWIZZLED = QuantSpec(scale_layout="swizzled")
COLD_BYTES = 1 << 28  # several times the L2 cache
PROGRAM_SECONDS = 0.03  # dispatched back to back in one measurement
SMALL_CALLS = 200


@dataclass(frozen=True)
class Case:
    """One operation.

    Attributes:
        name: as printed.
        call: of the operands.
        xla: style -> XLA's version.
        bytes_per_element: of x, every input and output once.
        operands: x and its amax -> operands.
        share, speedup: the least wanted of the copy's rate, and of XLA's speed.
    """

    name: str
    call: Callable
    xla: dict[str, Callable]
    bytes_per_element: float
    operands: Callable = lambda x, amax: (x, amax)
    share: float = 0
    speedup: float = 1


def _styles(function: Callable, **arguments) -> dict[str, Callable]:
    return {style: functools.partial(function, style=style, **arguments) for style in xla_baseline.STYLES}


def _with_amax(qdq: Callable) -> Callable:
    return lambda x: qdq(x, xla_baseline.amax(x))


def _quantize(x, amax, spec=NVFP4, axis=-1):
    t = jax_nvfp4.quantize(x, spec, axis=axis, amax=amax)
    return t.codes, t.scales


def _quantize_dual(x, amax):
    row, column = jax_nvfp4.quantize_dual(x, NVFP4_2D, amax=amax)
    return (row.codes, row.scales), (column.codes, column.scales)


def _dequantize(codes, scales, amax):
    return jax_nvfp4.dequantize(jax_nvfp4.BlockScaled(codes, scales, amax, NVFP4, -1))


def _quantized(x, amax):
    return *_quantize(x, amax), amax


_X, _QUANTIZED = 2, 1 / 2 + 1 / 16  # bytes per element: bfloat16; codes and scales

CASES = (
    Case("amax", jax_nvfp4.amax, {"": xla_baseline.amax}, _X, lambda x, amax: (x,), share=0.95),
    Case(
        "qdq, amax given",
        lambda x, amax: jax_nvfp4.qdq(x, amax=amax),
        _styles(xla_baseline.qdq),
        2 * _X,
        share=0.95,
        speedup=2,
    ),
    Case(
        "qdq with amax",
        jax_nvfp4.qdq,
        {style: _with_amax(f) for style, f in _styles(xla_baseline.qdq).items()},
        3 * _X,
        lambda x, amax: (x,),
        share=0.9,
        speedup=1.6,
    ),
    Case("quantize rowwise", _quantize, _styles(xla_baseline.quantize), _X + _QUANTIZED, share=0.95, speedup=5),
    Case(
        "quantize rowwise swizzled",
        functools.partial(_quantize, spec=SWIZZLED),
        _styles(xla_baseline.quantize, swizzled=True),
        _X + _QUANTIZED,
        share=0.93,
        speedup=5,
    ),
    Case(
        "quantize columnwise",
        functools.partial(_quantize, axis=-2),
        _styles(xla_baseline.quantize, axis=-2),
        _X + _QUANTIZED,
        share=0.85,
    ),
    Case("quantize 16x16 dual", _quantize_dual, _styles(xla_baseline.quantize_dual), _X + 2 * _QUANTIZED),
    Case("dequantize", _dequantize, _styles(xla_baseline.dequantize), _QUANTIZED + _X, _quantized, share=0.93),
)


@functools.partial(jax.jit, static_argnums=0)
def _chained(function: Callable, sets: list) -> list:
    """`function` of one set of operands after the other. XLA drops results that nobody gets, so all are returned."""
    results: list = [None]
    for operands in sets:
        operands, _ = jax.lax.optimization_barrier((operands, results[-1]))
        results.append(function(*operands))
    return results


def _timer(function: Callable, sets: list) -> Callable[[], float]:
    """Seconds of one application of `function`."""

    def seconds(programs: int) -> float:
        start = time.perf_counter()
        for _ in range(programs):
            results = _chained(function, sets)
        jax.block_until_ready(results)
        return (time.perf_counter() - start) / (programs * len(sets))

    seconds(1)
    programs = max(2, min(50, round(PROGRAM_SECONDS / (seconds(1) * len(sets)))))
    return lambda: seconds(programs)


def measure_shape(shape: tuple[int, int], rounds: int, cases=CASES) -> tuple[float, dict[str, dict]]:
    """The best copy rate (bytes/s) seen at one shape, and per case the seconds of the call, of XLA and its rate."""
    rows, columns = shape
    copies = max(6, -(-COLD_BYTES // (2 * rows * columns)))
    keys = jax.random.split(jax.random.key(0), copies)
    xs = [jax.jit(jax.random.normal, static_argnums=(1, 2))(key, shape, jnp.bfloat16) for key in keys]
    amaxes = [xla_baseline.amax(x) for x in xs]
    copy = _timer(jnp.copy, [(x,) for x in xs])

    copy_rate, results = 0.0, {}
    for case in cases:
        sets = [case.operands(x, amax) for x, amax in zip(xs, amaxes, strict=True)]
        expected = case.call(*sets[0])
        timers = {"call": _timer(case.call, sets), "copy": copy}
        timers |= {style: _timer(f, sets) for style, f in case.xla.items()}
        seconds = harness.medians(timers, rounds)
        xla = min(case.xla, key=lambda style: seconds[style])
        copy_rate = max(copy_rate, 2 * _X * rows * columns / seconds["copy"])
        results[case.name] = {
            "us": 1e6 * seconds["call"],
            "xla_us": 1e6 * seconds[xla],
            "xla_differs": not harness.close(jax.jit(case.xla[xla])(*sets[0]), expected),
            "tb_per_s": rows * columns * case.bytes_per_element / seconds["call"] / 1e12,
        }
    return copy_rate, results


def measure_small(rounds: int, cases=CASES) -> dict[str, float]:
    """Microseconds per dispatched call on 1024 elements, of every case and of one elementwise XLA operation."""
    x = jnp.ones(SMALL, jnp.bfloat16)
    amax = xla_baseline.amax(x)

    def timer(function: Callable, operands: tuple) -> Callable[[], float]:
        compiled = jax.jit(function)

        def seconds() -> float:
            start = time.perf_counter()
            for _ in range(SMALL_CALLS):
                result = compiled(*operands)
            jax.block_until_ready(result)
            return (time.perf_counter() - start) / SMALL_CALLS

        return seconds

    timers = {"x + 1 (XLA)": timer(lambda x: x + 1, (x,))}
    timers |= {case.name: timer(case.call, case.operands(x, amax)) for case in cases}
    return {name: 1e6 * seconds for name, seconds in harness.medians(timers, rounds).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = ",".join(f"{m}x{k}" for m, k in SHAPES)
    parser.add_argument("--shapes", default=default, help="comma-separated MxK, multiples of 16")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    device = jax.devices()[0]
    if device.platform != "gpu":
        parser.error(f"needs an NVIDIA GPU that JAX uses, found {device.device_kind}; bench/cpu.py measures CPUs")

    shapes = [tuple(map(int, shape.split("x"))) for shape in arguments.shapes.split(",")]
    measured = {shape: measure_shape(shape, arguments.rounds) for shape in shapes}
    roof = max(copy_rate for copy_rate, _ in measured.values())
    small = measure_small(arguments.rounds)

    rows = []
    for (m, k), (copy_rate, results) in measured.items():
        rows.append((f"{m}x{k} copy", "", f"{copy_rate / 1e12:.2f}", f"{copy_rate / roof:.0%}", "", "", "-"))
        for case in CASES:
            r = results[case.name]
            r["share_of_copy"], r["times_xla"] = 1e12 * r["tb_per_s"] / roof, r["xla_us"] / r["us"]
            wanted = [f"{case.share:.0%}"] * (r["share_of_copy"] < case.share)
            wanted += [f"{case.speedup:g}x"] * (r["times_xla"] < case.speedup)
            rows.append(
                (
                    f"{m}x{k} {case.name}",
                    f"{r['us']:.1f}",
                    f"{r['tb_per_s']:.2f}",
                    f"{r['share_of_copy']:.1%}",
                    f"{r['xla_us']:.1f}{'*' if r['xla_differs'] else ' '}",
                    f"{r['times_xla']:.2f}x",
                    ", ".join(wanted) or "-",
                )
            )
    print(f"{device.device_kind}, bfloat16, copy roof {roof / 1e12:.2f} TB/s")
    harness.print_table(("shape, operation", "us", "TB/s", "of copy", "xla us", "vs xla", "missed"), rows)
    print("\n1024 elements, microseconds per dispatched call")
    harness.print_table(("operation", "us"), [(name, f"{us:.1f}") for name, us in small.items()])
    harness.write(
        "gpu",
        copy_roof_tb_per_s=roof / 1e12,
        small_us=small,
        shapes={f"{m}x{k}": results for (m, k), (_, results) in measured.items()},
    )


if __name__ == "__main__":
    main()
