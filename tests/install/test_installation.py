"""Installations as users make them, each in an environment of its own."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
DOCTOR = ("-P", "-m", "jax_nvfp4", "doctor")
NEWER_HEADERS = """
import jax, jax.numpy as jnp
import jax_nvfp4
assert (jnp.ones(3) + 1 == 2).all()
try:
    jax_nvfp4.amax(jnp.ones((16, 16)))
except RuntimeError as error:
    print(error)
"""


def run(*command, **options) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def interpreter(version: str) -> Path:
    installed = Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")
    python = next(installed, None) or shutil.which(f"python{version}")
    return Path(python) if python else pytest.skip(f"needs Python {version}")


class Environment:
    """A virtual environment with these packages."""

    def __init__(self, folder: Path, *packages, python=sys.executable):
        self.bin = folder / "bin"
        run(python, "-m", "venv", folder)
        if packages:
            self.pip("install", *packages)

    def pip(self, *arguments, **options) -> str:
        return run(self.bin / "python", "-m", "pip", *arguments, **options)

    def python(self, *arguments) -> str:
        return run(self.bin / "python", *arguments, cwd=self.bin)


@pytest.fixture(scope="session")
def wheel() -> Path:
    """The one that `make` built and installed for these tests."""
    (path,) = (ROOT / "build" / "wheel").glob("*.whl")
    return path


@pytest.mark.parametrize(("python", "jax"), [("3.11", "0.10.0"), ("3.11", "0.10.2"), ("3.12", "0.11.2")])
def test_one_wheel_runs_on_every_jax(wheel, tmp_path, python, jax):
    environment = Environment(tmp_path / "env", wheel, f"jax=={jax}", python=interpreter(python))
    said = environment.python(*DOCTOR)
    assert f"jax {jax}" in said and "All is well." in said


def test_newer_headers_do_not_stop_jax(tmp_path):
    build = Environment(
        tmp_path / "build", "jaxlib==0.11.2", "scikit-build-core", "cmake", "ninja", python=interpreter("3.12")
    )
    build.pip("wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT)
    environment = Environment(tmp_path / "env", *tmp_path.glob("*.whl"), "jax==0.10.2")
    said = environment.python("-c", NEWER_HEADERS)
    assert "was built for version 0.4 of XLA's FFI, the installed jaxlib 0.10.2 has 0.3" in said


def test_editable_installation(tmp_path):
    environment = Environment(tmp_path / "env")
    environment.pip("install", "--editable", copy_of_the_tree(tmp_path / "tree"))
    assert "All is well." in environment.python(*DOCTOR)


def copy_of_the_tree(folder: Path) -> Path:
    files = run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).splitlines()
    for name in filter(lambda name: (ROOT / name).is_file(), files):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


def test_read_only_source(tmp_path):
    tree = copy_of_the_tree(tmp_path / "tree")
    environment = Environment(tmp_path / "env")
    for path in (tree, *tree.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222 | 0o444)
    # Root may write whatever the mode, unless it has laid that right down.
    drop = ("setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override") if os.geteuid() == 0 else ()
    pip = (environment.bin / "python", "-m", "pip")
    run(*drop, "sh", "-c", "! touch probe", cwd=tree)
    run(*drop, *pip, "wheel", "--no-deps", "-w", tmp_path / "wheels", ".", cwd=tree)
    assert list((tmp_path / "wheels").glob("*.whl"))


def test_floor_of_glibc(wheel, tmp_path):
    environment = Environment(tmp_path / "env", "auditwheel")
    said = " ".join(environment.python("-m", "auditwheel", "show", wheel).split())
    tag = said.partition('consistent with the following platform tag: "manylinux_')[2].partition('_x86_64"')[0]
    assert tuple(map(int, tag.split("_"))) <= (2, 34), said


def test_oldest_compiler(tmp_path):
    assert shutil.which("g++-11"), "g++-11 is missing: make test-full installs it"
    build = ROOT / "build" / "env" / "bin"
    cmake = functools.partial(run, build / "cmake")
    options = {"CMAKE_GENERATOR": "Ninja", "CMAKE_MAKE_PROGRAM": build / "ninja", "CMAKE_CXX_COMPILER": "g++-11"}
    options |= {"Python_EXECUTABLE": build / "python", "JAX_NVFP4_CUDA_ARCHS": ""}
    cmake("-S", ROOT / "ffi", "-B", tmp_path, *(f"-D{name}={value}" for name, value in options.items()))
    cmake("--build", tmp_path)
    assert (tmp_path / "libjax_nvfp4_cpu.so").is_file()
