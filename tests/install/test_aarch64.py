"""The libraries of aarch64 hosts (GH200, GB200): cross-compiled, and the CPU one run under an emulator.

JAX is not run there: `call_handler.cc` calls the handlers with what the operations here hand to them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest

from jax_nvfp4 import testing
from jax_nvfp4.operation import Operation
from jax_nvfp4.testing import assert_same_bytes

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "env" / "bin"
EMULATOR = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")
COMPILER = "aarch64-linux-gnu-g++"
XLA_DTYPES = {
    "bool": 1,
    "int32": 4,
    "uint8": 6,
    "uint32": 8,
    "float16": 10,
    "float32": 11,
    "bfloat16": 16,
    "float8_e4m3fn": 20,
    "float8_e8m0fnu": 33,
}
"""NumPy name -> number in XLA's FFI."""

PACKAGES = ("nvidia-cutlass-dsl-libs-cu12", "nvidia-cuda-crt", "nvidia-cuda-runtime")
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux2014_aarch64")


def run(*command, **options) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, **options)
    assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")[-4000:]
    return done.stdout


def build(folder: Path, families: str, env=None) -> Path:
    """Cross-compile the libraries; the folder of the CPU library."""
    for tool in (COMPILER, EMULATOR[0], BUILD / "cmake"):
        assert shutil.which(tool), f"{tool} is missing: make test-full installs it"
    python = BUILD / "python"
    options = {
        "CMAKE_GENERATOR": "Ninja",
        "CMAKE_MAKE_PROGRAM": BUILD / "ninja",
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_CXX_COMPILER": COMPILER,
        "Python_EXECUTABLE": python,
        "JAX_NVFP4_CUDA_ARCHS": families,
    }
    defines = [f"-D{name}={value}" for name, value in options.items()]
    run(BUILD / "cmake", "-S", ROOT / "ffi", "-B", folder, *defines, env=env)
    run(BUILD / "cmake", "--build", folder)
    return folder


@pytest.fixture(scope="module")
def caller(tmp_path_factory) -> Path:
    program = tmp_path_factory.mktemp("caller") / "call_handler"
    source = Path(__file__).with_name("call_handler.cc")
    run(COMPILER, "-std=c++17", "-isystem", jax.ffi.include_dir(), source, "-o", program, "-ldl")
    return program


@dataclass(frozen=True)
class Call:
    """What an operation handed to its custom call, and what it got back."""

    target: str
    operands: list[np.ndarray]
    results: list[np.ndarray]
    mode: dict[str, np.generic]

    def encode(self) -> bytes:
        """As `call_handler.cc` reads it."""
        words = [self.target, len(self.operands), len(self.results), len(self.mode)]
        for array in (*self.operands, *self.results):
            words += [XLA_DTYPES[array.dtype.name], array.nbytes, array.ndim, *array.shape]
        for name, value in sorted(self.mode.items()):
            words += [name, XLA_DTYPES[value.dtype.name], int.from_bytes(value.tobytes(), "little")]
        return " ".join(map(str, words)).encode() + b"\n" + b"".join(array.tobytes() for array in self.operands)


@pytest.fixture
def calls(monkeypatch) -> list[Call]:
    """Every call of an operation from here on."""
    recorded = []
    original = Operation.__call__

    def record(self, *operands, mode, **options):
        results = original(self, *operands, mode=mode, **options)
        arrays = (list(map(np.asarray, values)) for values in (operands, results))
        recorded.append(Call(self.target, *arrays, mode.attribute()))
        return results

    monkeypatch.setattr(Operation, "__call__", record)
    return recorded


def test_cpu_handlers_give_the_same_bytes(calls, caller, tmp_path):
    shape = (144, 80)
    for case in testing.CASES:
        for dtype in case.dtypes:
            x = np.stack([testing.make(family, shape, dtype) for family in testing.FAMILIES])
            for got, expected in zip(case.run(jax.numpy.asarray(x)), case.reference(x), strict=True):
                assert_same_bytes(got, expected, case.name)  # so what was recorded is what the oracle says
    assert len(calls) > len(testing.CASES)
    library = build(tmp_path, "") / "libjax_nvfp4_cpu.so"
    output = run(*EMULATOR, caller, library, input=b"".join(call.encode() for call in calls))
    for call in calls:
        for expected in call.results:
            got = np.frombuffer(output[: expected.nbytes], expected.dtype).reshape(expected.shape)
            assert_same_bytes(got, expected, f"{call.target} {call.mode}")
            output = output[expected.nbytes :]
    assert not output


def test_cuda_library_links_and_loads(caller, tmp_path):
    packages = tmp_path / "packages"
    platforms = [f"--platform={platform}" for platform in PLATFORMS]
    sys.path.insert(0, str(ROOT / "jax_nvfp4" / "kernels"))
    import families

    run(BUILD / "pip", "install", "-q", *families.requirements("all"))
    wanted = [families.REQUIREMENTS.get(name, name) for name in PACKAGES]
    run(BUILD / "pip", "install", "-q", "--no-deps", "--target", packages, "--only-binary=:all:", *platforms, *wanted)
    library = build(tmp_path / "build", "sm_100f", env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(packages)})
    run(*EMULATOR, caller, library / "cuda" / "libjax_nvfp4_cuda.so", input=b"")
