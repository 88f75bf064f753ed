"""`python -m jax_nvfp4 doctor`: a healthy installation, and each kind of problem with the line that fixes it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import jax_nvfp4
from jax_nvfp4 import doctor, ffi, testing

PACKAGE = Path(jax_nvfp4.__file__).parent


def run_doctor(root: Path) -> subprocess.CompletedProcess:
    """The command, with the package that `root` holds."""
    command = [sys.executable, "-m", "jax_nvfp4", "doctor"]
    return subprocess.run(command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True)


def test_healthy_installation():
    done = run_doctor(PACKAGE.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    tested = {tuple(line.split()) for line in done.stdout.splitlines()}
    assert {(case.name, "ok") for case in testing.CASES} <= tested
    for said in (f"jax {jax.__version__}", *ffi.TARGETS, ffi.LIBRARIES["cpu"], "All is well."):
        assert said in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    if jax.default_backend() == "gpu":
        for name, (target, *_) in doctor.PRIMITIVES.items():
            assert ((*name.split(), "ok") in tested) == hasattr(ffi.library("cuda"), target)


def test_installation_without_native_libraries(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "jax_nvfp4", ignore=shutil.ignore_patterns("_native", "__pycache__"))
    done = run_doctor(tmp_path)
    assert done.returncode == 1 and not done.stderr, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "nothing runs on the CPU" in said and "hides the one installed in" in said
    assert "fix: leave the source folder, or start Python with -P" in said


def only(monkeypatch, case: testing.Case) -> None:
    """Leaves one case to test."""
    monkeypatch.setattr(testing, "CASES", (case,))


class Wrong(testing.Case):
    def reference(self, x, amax=None):
        return tuple(np.negative(y) for y in super().reference(x, amax))


class Raising(testing.Case):
    def run(self, x):
        raise RuntimeError("first line\nsecond line")


def test_wrong_bytes(monkeypatch, capsys):
    only(monkeypatch, Wrong("amax"))
    assert doctor.run() == 1
    output = capsys.readouterr().out
    assert "amax  FAILED: AssertionError: bfloat16: " in output
    assert "fix: pip install --force-reinstall --no-deps ." in output


def test_operation_that_raises(monkeypatch, capsys):
    only(monkeypatch, Raising("amax"))
    assert doctor.run() == 1
    output = capsys.readouterr().out
    assert "FAILED: RuntimeError: first line" in output and "second line" not in output


def device(kind: str, platform: str = "gpu", software: str = "PJRT CUDA 13", **attributes) -> SimpleNamespace:
    client = SimpleNamespace(platform_version=software)
    return SimpleNamespace(id=0, platform=platform, device_kind=kind, client=client, **attributes)


@pytest.mark.parametrize(
    ("found", "families", "said"),
    [
        (device("H200", compute_capability="9.0"), None, "JAX_NVFP4_CUDA_ARCHS=native pip install"),
        (device("B200", compute_capability="10.0"), "sm_90a", "JAX_NVFP4_CUDA_ARCHS=sm_100f pip install"),
        (device("A100", compute_capability="8.0"), "sm_90a", "no kernels for A100, compute capability 8.0"),
        (device("MI300", software="PJRT ROCm"), None, "no kernels for MI300"),
        (device("TPU v5", platform="tpu"), None, "JAX_PLATFORMS=cpu"),
    ],
)
def test_device_without_kernels(monkeypatch, capsys, found, families, said):
    only(monkeypatch, testing.Case("amax"))
    cpu = jax.local_devices(backend="cpu")
    libraries = {"cpu": ffi.library("cpu"), "cuda": families}
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: cpu if backend == "cpu" else [found])
    monkeypatch.setattr(ffi, "library", libraries.get)
    absent = ffi.Absence("none", f"JAX_NVFP4_CUDA_ARCHS=native {ffi.REINSTALL}")
    monkeypatch.setattr(ffi, "absence", lambda platform: None if libraries[platform] else absent)
    monkeypatch.setattr(doctor, "_cuda_families", lambda: (families or "").split(","))
    assert doctor.run() == 1
    output = capsys.readouterr().out
    assert said in " ".join(output.split())
    assert "amax  ok" in output  # the CPU is still tested


def test_driver_without_jax_support(monkeypatch, capsys, tmp_path):
    only(monkeypatch, testing.Case("amax"))
    cpu = jax.local_devices(backend="cpu")
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: cpu)
    monkeypatch.setattr(doctor, "NVIDIA_DRIVER", tmp_path)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert doctor.run() == 1
    assert "fix: pip install 'jax[cuda13]'" in capsys.readouterr().out


def test_devices_that_do_not_start(monkeypatch, capsys):
    def broken(backend=None):
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setattr(jax, "local_devices", broken)
    assert doctor.run() == 1
    assert "fix: JAX_PLATFORMS=cpu python -m jax_nvfp4 doctor" in capsys.readouterr().out


def test_bit_patterns_cover_bfloat16_and_both_sides_of_every_tie():
    bits = set(doctor._bit_patterns().view(np.uint32).tolist())
    assert bits.issuperset(range(0, 1 << 32, 1 << 16))
    ties = np.array([0.25, 5.0, 1.0625 * 2**-6], np.float32)  # two of E2M1, one of E4M3
    assert bits.issuperset((ties.view(np.uint32)[:, None] + np.arange(-1, 2)).ravel().tolist())


def test_counters_reach_every_word_and_carry():
    counters = doctor._counters()
    assert counters.dtype == np.uint32 and counters.shape[1] == 6
    assert all({0, 1, 0x80000000, 0xFFFFFFFF} <= set(column.tolist()) for column in counters.T)


@pytest.mark.parametrize("name", doctor.PRIMITIVES)
def test_primitives_have_operands_and_references(name):
    _, operand, reference = doctor.PRIMITIVES[name]
    x = operand()
    expected = reference(x)
    assert len(expected) == len(x) and len(np.unique(expected)) > 1
