"""A native library that is absent or does not fit: JAX runs, and the operations say what is wrong and what to do."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from jax_nvfp4 import ffi
from jax_nvfp4.kernels import families

# Changes what the package finds, uses JAX, and prints what an operation says.
SCRIPT = """
import sys
from pathlib import Path
import jax
import jax.numpy as jnp
{change}
import jax_nvfp4
assert (jnp.ones(3) + 1 == 2).all()
try:
    jax_nvfp4.amax(jnp.ones((16, 16)))
except RuntimeError as error:
    print(error)
"""
OTHER_HEADERS = "jax.ffi.include_dir = lambda: sys.argv[1]"
OTHER_FOLDER = """
from importlib import resources
files = resources.files
resources.files = lambda package: Path(sys.argv[1]) if package == "jax_nvfp4" else files(package)
"""


def header(folder, major: int, minor: int):
    path = folder / "xla" / "ffi" / "api" / "c_api.h"
    path.parent.mkdir(parents=True)
    path.write_text(f"#define XLA_FFI_API_MAJOR {major}\n#define XLA_FFI_API_MINOR {minor}\n")
    return folder


@pytest.fixture
def built_for() -> tuple[int, int]:
    return ffi._built_for(ffi.library("cpu"))


@pytest.mark.parametrize("change", [(0, -1), (1, 0)])
def test_another_version_of_the_ffi(run_script, tmp_path, built_for, change):
    major, minor = (a + b for a, b in zip(built_for, change, strict=True))
    said = run_script(SCRIPT.format(change=OTHER_HEADERS), header(tmp_path, major, minor))
    assert f"was built for version {built_for[0]}.{built_for[1]} of XLA's FFI" in said
    assert f"has {major}.{minor}. Fix: pip install" in said


def test_a_newer_minor_version_fits(run_script, tmp_path, built_for):
    assert not run_script(SCRIPT.format(change=OTHER_HEADERS), header(tmp_path, built_for[0], built_for[1] + 1))


def test_headers_without_a_version(run_script, tmp_path):
    assert "c_api.h" in run_script(SCRIPT.format(change=OTHER_HEADERS), tmp_path)


def native_file(package):
    (package / "_native").mkdir()
    return package / "_native" / ffi.LIBRARIES["cpu"]


def test_a_library_of_an_older_package(run_script, tmp_path):
    maps = open("/proc/self/maps").read().split()
    libc = next(word for word in maps if word.endswith("libc.so.6"))
    native_file(tmp_path).symlink_to(libc)
    assert "is older than this package. Fix: pip install" in run_script(SCRIPT.format(change=OTHER_FOLDER), tmp_path)


def test_a_file_that_is_no_library(run_script, tmp_path):
    native_file(tmp_path).write_text("")
    assert "file too short. Fix: pip install" in run_script(SCRIPT.format(change=OTHER_FOLDER), tmp_path)


def test_a_source_tree_that_hides_the_installation(run_script, tmp_path):
    said = run_script(SCRIPT.format(change=OTHER_FOLDER), tmp_path)
    assert "hides the one installed in" in said and "leave the source folder, or start Python with -P" in said


def driver(capabilities: list[str], status: int = 0):
    """Stands in for libcuda."""

    def attribute(pointer, which, device):
        pointer._obj.value = int(capabilities[device.value].split(".")[0 if which == 75 else 1])
        return 0

    def put(value):
        def function(pointer, *ordinal):
            pointer._obj.value = ordinal[0] if ordinal else value
            return 0

        return function

    return SimpleNamespace(
        cuInit=lambda flags: status,
        cuDeviceGetCount=put(len(capabilities)),
        cuDeviceGet=put(0),
        cuDeviceGetAttribute=attribute,
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (driver(["9.0", "9.0"]), ["sm_90a"]),
        (driver(["12.1", "10.3", "9.0"]), ["sm_90a", "sm_100f", "sm_120f"]),
        (driver(["8.0"]), []),
        (driver([], status=100), []),
    ],
)
def test_native_is_what_this_machine_has(monkeypatch, found, expected):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: found)
    assert families.resolve("native") == expected
    assert bool(families.requirements("native")) == bool(expected)


def test_native_without_a_driver(monkeypatch):
    def absent(name):
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert families.resolve("native") == []


def test_native_with_a_driver_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver([], status=803))
    with pytest.raises(RuntimeError, match="answers cuInit with error 803.*JAX_NVFP4_CUDA_ARCHS= for none"):
        families.resolve("native")


def test_asked_families():
    assert families.resolve("") == families.requirements("") == []
    assert families.resolve("all") == list(families.FAMILIES)
    assert families.resolve("sm_120f;sm_90a") == ["sm_120f", "sm_90a"]
    assert "nvidia-cutlass-dsl" in " ".join(families.requirements("sm_90a"))
    with pytest.raises(ValueError, match="'sm_90' is no GPU family: choose from sm_90a"):
        families.resolve("sm_90")
