"""MXFP8 along both axes from one read, against our own single-axis calls and XLA, inside CUDA graphs.

    python bench/mxfp8.py [--rounds 7] [--check]

All are timed in turn as in gpu.py, at shapes from 2 Mi to 512 Mi bfloat16 elements, with swizzled scales:

* "dual": one call;
* "composition": a call per axis with linear scales, and `swizzle_scales` of both;
* "two calls": a call per axis that swizzles itself;
* "xla": the faster one of XLA's versions (xla_baseline.py).

Every program is a CUDA graph: command buffers are on, and for each one a profile must show that graphs are launched and
that our kernels run as often as they are called, and operands that the graph has not seen must give the bytes of the
oracle. --check runs everything once on a tiny operand, on any device and without graphs, for a test.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":  # before JAX reads them; on CPUs they mean nothing
    flags = "--xla_gpu_enable_command_buffer=+CUSTOM_CALL --xla_gpu_graph_min_graph_size=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"

import gpu
import harness
import jax
import jax.numpy as jnp
import numpy as np
import xla_baseline
from gpu import CHECK, CHECKED, Effort, Shape

import jax_nvfp4
from jax_nvfp4 import MXFP8
from jax_nvfp4.testing import Case, make
from jax_nvfp4.testing.cases import DUAL, MX_SWIZZLED

CASE = Case("quantize", MX_SWIZZLED, DUAL)
SHAPES: tuple[Shape, ...] = tuple((1 << (n + 1) // 2, 1 << n // 2) for n in range(21, 30))
LEAST_COMPOSITION, LEAST_XLA, LEAST_SHARE = 2.0, 3.7, 0.9
TRACED = 5  # calls in a profile


def composition(x) -> tuple[jax.Array, ...]:
    """The results of the dual call by single-axis calls and XLA's swizzle."""
    both = (jax_nvfp4.quantize(x, MXFP8, axis=axis) for axis in DUAL)
    return tuple(a for t in both for a in (t.codes, jax_nvfp4.swizzle_scales(t.scales)))


def two_calls(x) -> tuple[jax.Array, ...]:
    """The same by single-axis calls alone."""
    both = (jax_nvfp4.quantize(x, MX_SWIZZLED, axis=axis) for axis in DUAL)
    return tuple(a for t in both for a in (t.codes, t.scales))


XLA = {f"xla, transposes {turned}": f for turned, f in xla_baseline.versions(CASE).items()}
OURS: dict[str, Callable] = {"dual": CASE.call, "composition": composition, "two calls": two_calls}
KERNELS = {"dual": 1, "composition": 2, "two calls": 2}
"""How many of ours a call launches."""


def check_graph(name: str, function: Callable) -> dict[str, int]:
    """Raise unless what is timed runs inside a CUDA graph and computes; what the profile counted.

    Raises:
        RuntimeError: no graph is launched, kernels are missing, or results are wrong for new operands.
    """
    operands = [make("block_spread", (256, 384), "bfloat16", seed) for seed in range(TRACED)]
    compiled = jax.jit(function)
    for _ in range(3):
        jax.block_until_ready(compiled(jnp.zeros_like(operands[0])))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            results = [jax.block_until_ready(compiled(jnp.asarray(x))) for x in operands]
        (profile,) = Path(folder).rglob("*.xplane.pb")
        counts = _events(profile)
    for x, result in zip(operands, results, strict=True):
        for got, wanted in zip(result, CASE.reference(x), strict=True):
            if np.asarray(got).tobytes() != wanted.tobytes():
                raise RuntimeError(f"{name}: a graph does not compute the results of new operands")
    if counts["graphs"] < TRACED or counts["kernels"] != TRACED * KERNELS.get(name, 0):
        raise RuntimeError(f"{name}: the profile of {TRACED} calls has {counts}")
    return counts


def _events(profile: Path) -> dict[str, int]:
    """Graph launches on the host and kernels of ours on the device."""
    names: Counter[str] = Counter()
    for plane in jax.profiler.ProfileData.from_file(str(profile)).planes:
        for line in plane.lines:
            names.update(event.name for event in line.events)
    return {
        "graphs": names["cuGraphLaunch"],
        "kernels": sum(count for name, count in names.items() if name.startswith("kernel_cutlass")),
    }


def measure(shape: Shape, effort: Effort) -> dict[str, float]:
    """Seconds of each at one shape, and its copy rate (bytes/s)."""
    x_bytes = 2 * math.prod(shape)
    keys = jax.random.split(jax.random.key(0), max(effort.copies, -(-effort.cold_bytes // x_bytes)))
    sets = [(jax.jit(jax.random.normal, static_argnums=(1, 2))(key, shape, jnp.bfloat16),) for key in keys]
    timers = {name: gpu.cold_timer(f, sets, effort) for name, f in {**OURS, **XLA, "copy": jnp.copy}.items()}
    seconds = harness.medians(timers, effort.rounds)
    return seconds | {"copy_rate": 2 * x_bytes / seconds["copy"]}


def bench(shapes: Sequence[Shape], effort: Effort) -> dict:
    """Measure every shape and print the table."""
    by_shape = {shape: measure(shape, effort) for shape in shapes}
    roof = max(seconds["copy_rate"] for seconds in by_shape.values())
    results, rows = {}, []
    for (m, k), seconds in by_shape.items():
        dual = seconds["dual"]
        r = {
            "us": {name: 1e6 * seconds[name] for name in (*OURS, *XLA, "copy")},
            "share_of_copy": CASE.bytes_moved((m, k), "bfloat16") / dual / roof,
            "times_composition": seconds["composition"] / dual,
            "times_two_calls": seconds["two calls"] / dual,
            "times_xla": min(seconds[name] for name in XLA) / dual,
        }
        results[f"{m}x{k}"] = r
        ratios = (f"{r[f'times_{name}']:.2f}x" for name in ("composition", "two_calls", "xla"))
        rows.append((f"{m}x{k}", f"{1e6 * dual:.1f}", f"{r['share_of_copy']:.1%}", *ratios))
    means = {
        name: math.prod(r[f"times_{name}"] for r in results.values()) ** (1 / len(results))
        for name in ("composition", "two_calls", "xla")
    }
    rows.append(("geometric mean", "", "", *(f"{mean:.2f}x" for mean in means.values())))
    print(f"{jax.devices()[0].device_kind}, bfloat16, copy roof {roof / 1e12:.2f} TB/s")
    harness.print_table(("shape", "us", "of copy", "vs composition", "vs two calls", "vs xla"), rows)
    best = max(r["share_of_copy"] for r in results.values())
    for what, least, got in (
        ("the composition, geometric mean", LEAST_COMPOSITION, means["composition"]),
        ("XLA at the largest shape", LEAST_XLA, list(results.values())[-1]["times_xla"]),
        ("of the copy", LEAST_SHARE, best),
    ):
        print(f"{'reached' if got >= least else 'missed'}: {least} {what}, {got:.3f}")
    return {"copy_roof_tb_per_s": roof / 1e12, "geometric_means": means, "shapes": results}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=Effort.rounds)
    parser.add_argument("--check", action="store_true", help="once, on a tiny operand; nothing is written")
    arguments = parser.parse_args(argv)
    device = jax.devices()[0]
    if arguments.check:
        bench([CHECKED], CHECK)
        return
    if device.platform != "gpu":
        parser.error(f"needs an NVIDIA GPU that JAX uses, found {device.device_kind}")
    graphs = {name: check_graph(name, function) for name, function in OURS.items()}
    effort = replace(Effort(), rounds=arguments.rounds)
    harness.write("mxfp8", device, "bfloat16", graphs=graphs, **bench(SHAPES, effort))


if __name__ == "__main__":
    main()
