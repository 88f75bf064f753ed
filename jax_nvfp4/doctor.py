"""`python -m jax_nvfp4 doctor`: what is installed, what is missing, and whether every device computes the right bytes.

It needs no native library to start, prints one line that fixes each problem, and fits in 80 columns.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import textwrap
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import jax
import numpy as np

from jax_nvfp4 import ffi, testing
from jax_nvfp4.kernels import families
from jax_nvfp4.oracle import e2m1, e4m3
from jax_nvfp4.oracle.philox import philox4x32

WIDTH = 80
DISTRIBUTIONS = ("jax", "jaxlib", "numpy", "ml_dtypes")
CPU_ONLY = "JAX_PLATFORMS=cpu"
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")

PRIMITIVES: dict[str, tuple[str, Callable[[], np.ndarray], Callable[[np.ndarray], np.ndarray]]] = {
    "conversion to e2m1": ("nvfp4_selftest_e2m1", lambda: _bit_patterns(), e2m1.encode),
    "conversion to e4m3": ("nvfp4_selftest_e4m3", lambda: _bit_patterns(), lambda x: e4m3.encode(x).view(np.uint8)),
    "random words": ("nvfp4_selftest_philox", lambda: _counters(), lambda x: philox4x32(x[:, :4], x[:, 4:])),
}
"""What the CUDA library can also compute alone: the name of its call, the operand, and the oracle's result for it."""

# Along both axes more than one tile of swizzled scales, the last one partly filled.
SHAPE = (160, 96)


class Report:
    """Prints the findings as they are made and keeps the problems for the end."""

    def __init__(self):
        self.problems: list[tuple[str, str]] = []

    def section(self, title: str) -> None:
        print()
        self.line(title, indent=0)

    def line(self, text: str, indent: int = 2) -> None:
        print(textwrap.fill(text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2)))

    def problem(self, what: str, fix: str) -> None:
        """One thing that is wrong, and the one line that puts it right."""
        if (what, fix) not in self.problems:
            self.problems.append((what, fix))

    def finish(self) -> int:
        """Print the problems; the exit status."""
        if not self.problems:
            self.section("All is well.")
            return 0
        self.section("1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems")
        for number, (what, fix) in enumerate(self.problems, 1):
            self.line(f"{number}. {what}")
            self.line(f"fix: {fix}", indent=5)
        return 1


def run() -> int:
    """Check this installation, print what was found, and return the exit status: 0 if all is well, else 1."""
    report = Report()
    report.line("jax_nvfp4 doctor: is this installation complete, and does it compute the right bytes?", indent=0)
    _versions(report)
    _libraries(report)
    for device in _devices(report):
        _self_test(report, device)
    return report.finish()


def _versions(report: Report) -> None:
    import jax_nvfp4

    report.section("Versions")
    found = [("python", platform.python_version()), ("jax_nvfp4", jax_nvfp4.__version__)]
    found += [(name, metadata.version(name)) for name in DISTRIBUTIONS]
    report.line(", ".join(f"{name} {version}" for name, version in found))


def _libraries(report: Report) -> None:
    report.section("Native libraries: the compiled code, in the folder")
    report.line(str(ffi.directory()))
    for name, file in ffi.LIBRARIES.items():
        if ffi.library(name) is None:
            state = "unusable" if (ffi.directory() / file).is_file() else "missing"
            report.line(f"{name:<5} {file:<24} {state}{' (needed on NVIDIA GPUs only)' * (name == 'cuda')}")
        else:
            kernels = f", for GPU families {', '.join(_cuda_families())}" if name == "cuda" else ""
            report.line(f"{name:<5} {file:<24} found{kernels}")
    if why := ffi.absence("cpu"):
        report.problem(f"nothing runs on the CPU: {why.reason}", why.fix)

    report.section("Custom calls: the operations that JAX hands to these libraries")
    for target in ffi.TARGETS:
        libraries = {name: ffi.library(name) for name in ffi.LIBRARIES}
        having = [name for name, handlers in libraries.items() if hasattr(handlers, target)]
        report.line(f"{target:<30} {' and '.join(having) or 'in no library'}")


def _cuda_families() -> list[str]:
    """The GPU families that the CUDA library holds kernels for, none where there is no such library."""
    handlers = ffi.library("cuda")
    if handlers is None:
        return []
    query = handlers.jax_nvfp4_cuda_archs
    query.restype = ctypes.c_char_p
    return query().decode().split(",")


def _devices(report: Report) -> list[jax.Device]:
    """The devices that have kernels. Several CPU devices share one library and one processor: the first stands in."""
    report.section("Devices")
    try:
        found = jax.local_devices()
        cpus = jax.local_devices(backend="cpu")
    except RuntimeError as error:
        report.line(f"JAX finds none: {_first_line(error)}")
        report.problem("JAX cannot start its devices", f"{CPU_ONLY} python -m jax_nvfp4 doctor, or repair the driver")
        return []
    others = [device for device in found if device.platform != "cpu"]
    if not others and "JAX_PLATFORMS" not in os.environ and NVIDIA_DRIVER.exists():
        report.problem("this machine has an NVIDIA GPU that JAX does not use", "pip install 'jax[cuda13]'")
    supported = []
    for device in [cpus[0], *others]:
        lacking = _lacking(report, device)
        count = f" ({len(cpus)} of them)" if device.platform == "cpu" and len(cpus) > 1 else ""
        report.line(f"{_name(device)}{count}: {lacking or 'supported'}")
        if not lacking:
            supported.append(device)
    return supported


def _lacking(report: Report, device: jax.Device) -> str | None:
    """What keeps `device` from computing, None if nothing does."""
    if device.platform == "cpu":
        return "no CPU library" if ffi.library("cpu") is None else None
    capability = str(getattr(device, "compute_capability", ""))
    if device.platform != "gpu" or "cuda" not in device.client.platform_version.lower():
        report.problem(f"jax_nvfp4 has no kernels for {device.device_kind}", f"{CPU_ONLY} runs everything on the CPU")
        return "not a CPU and not an NVIDIA GPU"
    family = families.family_of(capability)
    if family is None:
        report.problem(
            f"jax_nvfp4 has no kernels for {device.device_kind}, compute capability {capability} (it has them for "
            f"{', '.join(c for f in families.FAMILIES.values() for c in f.capabilities)})",
            f"{CPU_ONLY} runs everything on the CPU",
        )
        return f"no kernels for compute capability {capability}"
    if family in _cuda_families():
        return None
    built = f"the CUDA library has kernels for {', '.join(_cuda_families())} only"
    why = ffi.absence("cuda") or ffi.Absence(built, f"{families.VARIABLE}={family} {ffi.REINSTALL}")
    report.problem(f"nothing runs on {device.device_kind}: {why.reason}", why.fix)
    return f"no kernels for GPU family {family}"


def _self_test(report: Report, device: jax.Device) -> None:
    report.section(
        f"Self-test on {_name(device)}: every byte against the NumPy reference, on {len(testing.FAMILIES)} kinds of "
        "data, ordinary and extreme"
    )
    tests: dict[str, Callable[[], None]]
    tests = {case.name: functools.partial(_compare_case, case, device) for case in testing.CASES}
    if device.platform != "cpu":
        tests |= _primitive_tests(device)
    width = max(map(len, tests))
    for name, test in tests.items():
        try:
            test()
        except Exception as error:
            if ffi.is_without_kernel(error):
                report.line(f"{name:<{width}}  no kernel in this build")
                continue
            report.line(f"{name:<{width}}  FAILED: {_first_line(error)}")
            report.problem(f"{name} fails on {_name(device)}", ffi.REINSTALL)
        else:
            report.line(f"{name:<{width}}  ok")


def _compare_case(case: testing.Case, device: jax.Device) -> None:
    # On a GPU each dtype is a kernel of its own, which may be missing.
    for dtype in case.dtypes[:1] if device.platform == "cpu" else case.dtypes:
        x = np.stack([testing.make(family, SHAPE, dtype) for family in testing.FAMILIES])
        with jax.default_device(device):
            actual = case.run(jax.device_put(x, device))
        for got, expected in zip(actual, case.reference(x), strict=True):
            testing.assert_same_bytes(got, expected, dtype)


def _primitive_tests(device: jax.Device) -> dict[str, Callable[[], None]]:
    """Primitives alone, on far more values: each GPU family has its own way to convert, some of them in hardware."""
    return {
        name: functools.partial(_compare_primitive, *primitive, device)
        for name, primitive in PRIMITIVES.items()
        if hasattr(ffi.library("cuda"), primitive[0])
    }


def _compare_primitive(target: str, operand, reference, device: jax.Device) -> None:
    x = operand()
    expected = reference(x)
    handler = jax.ffi.pycapsule(getattr(ffi.library("cuda"), target))
    jax.ffi.register_ffi_target(target, handler, platform="CUDA")
    call = jax.jit(jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(expected.shape, expected.dtype)))
    testing.assert_same_bytes(call(jax.device_put(x, device)), expected, target)


def _bit_patterns() -> np.ndarray:
    """float32 of every bfloat16 value, a million evenly spread bit patterns, and both formats' ties and neighbours."""
    bfloat16 = np.arange(1 << 16, dtype=np.uint32) << 16
    spread = np.arange(0, 1 << 32, 4093, dtype=np.uint64).astype(np.uint32)
    scales = testing.E4M3_POSITIVE
    ties = np.concatenate([testing.E2M1_MIDPOINTS, (scales[:-1] + scales[1:]) / 2]).view(np.uint32)
    near = ties[:, None] + np.arange(-2, 3, dtype=np.int64)
    return np.concatenate([bfloat16, spread, near.astype(np.uint32).ravel()]).view(np.float32)


def _counters() -> np.ndarray:
    """Philox counters with their keys, (n, 6): each word alone at its smallest, its largest and in between; any."""
    words = np.concatenate([[0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF], 1 << np.arange(32)]).astype(np.uint32)
    alone = (np.eye(6, dtype=np.uint32)[:, None, :] * words[None, :, None]).reshape(-1, 6)
    return np.concatenate([alone, np.random.default_rng(0).integers(0, 1 << 32, (1 << 16, 6), np.uint32)])


def _name(device: jax.Device) -> str:
    capability = getattr(device, "compute_capability", None)
    kind = "" if device.platform == "cpu" else f", {device.device_kind}"
    return f"{device.platform}:{device.id}{kind}" + (f", compute capability {capability}" if capability else "")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
