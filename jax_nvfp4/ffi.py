"""The native libraries: where they are, loading them, and the custom calls they provide.

The CPU library and the CUDA library each register a handler for the same names, so nothing above this file asks on
which device it runs. A library that is absent or does not fit is never registered: JAX works without it, and the
operations say why they do not.
"""

from __future__ import annotations

import ctypes
import functools
import re
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path

import jax

from jax_nvfp4.kernels.families import VARIABLE

LIBRARIES = {"cpu": "libjax_nvfp4_cpu.so", "cuda": "libjax_nvfp4_cuda.so"}
PREFIX = "nvfp4_"
"""What the names of all custom calls begin with."""

TARGETS: list[str] = []
"""The names of all custom calls, in the order in which the operations were defined."""

REINSTALL = "pip install --force-reinstall --no-deps . (in the source folder)"
"""What puts a library right."""


def directory():
    """The folder of the native libraries."""
    return resources.files("jax_nvfp4") / "_native"


def jaxlib_api_version() -> tuple[int, int]:
    """The version of XLA's FFI in the installed jaxlib.

    Raises:
        OSError: jaxlib has no header that says so.
    """
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text()))
    if len(found) != 2:
        raise OSError(f"{header} does not say which version of XLA's FFI it describes")
    return int(found["MAJOR"]), int(found["MINOR"])


def _built_for(handlers: ctypes.CDLL) -> tuple[int, int]:
    return tuple((ctypes.c_int * 2).in_dll(handlers, "jax_nvfp4_ffi_api_version"))  # type: ignore[return-value]


def _hidden_installation(library: str) -> Path | None:
    """The installed package with this library that the imported one, a source tree without it, stands in front of."""
    for distribution in metadata.distributions(name="jax_nvfp4"):
        for file in distribution.files or ():
            path = Path(str(distribution.locate_file(file)))
            if path.name == library and path.exists():
                return path.parents[1]
    return None


@dataclass(frozen=True)
class Absence:
    """Why this installation has no library that can be used.

    Attributes:
        reason: what is wrong.
        fix: what puts it right.
    """

    reason: str
    fix: str = REINSTALL


@functools.cache
def _load(platform: str) -> ctypes.CDLL | Absence:
    path = directory() / LIBRARIES[platform]
    if not path.is_file():
        if hidden := _hidden_installation(path.name):
            return Absence(
                f"the imported package has no {path}, and hides the one installed in {hidden}",
                "leave the source folder, or start Python with -P",
            )
        asked = f"{VARIABLE}=native " if platform == "cuda" else ""
        return Absence(f"there is no {path}", asked + REINSTALL)
    try:
        handlers = ctypes.CDLL(str(path))
        has = jaxlib_api_version()
    except OSError as error:
        return Absence(str(error))
    try:
        needs = _built_for(handlers)
    except ValueError:
        return Absence(f"{path} is older than this package")
    if needs[0] != has[0] or needs[1] > has[1]:
        return Absence(
            f"{path} was built for version {needs[0]}.{needs[1]} of XLA's FFI, the installed jaxlib "
            f"{metadata.version('jaxlib')} has {has[0]}.{has[1]}",
            f"{REINSTALL}, without --no-build-isolation",
        )
    return handlers


def library(platform: str) -> ctypes.CDLL | None:
    """The native library for "cpu" or "cuda", or None where this installation has none that loads and fits."""
    loaded = _load(platform)
    return None if isinstance(loaded, Absence) else loaded


def absence(platform: str) -> Absence | None:
    """Why there is no library for "cpu" or "cuda", None if there is one."""
    loaded = _load(platform)
    return loaded if isinstance(loaded, Absence) else None


def missing(platform: str, target: str) -> str:
    """Why `target` cannot run on `platform`, and what to do; empty if it can."""
    if hasattr(library(platform), target):
        return ""
    why = absence(platform) or Absence(f"it has no {target}, being older than this package")
    return f"jax_nvfp4 cannot use its {platform} library: {why.reason}. Fix: {why.fix}"


def is_without_kernel(error: Exception) -> bool:
    """Whether a call failed because the CUDA library has no kernel for its mode and dtype (`ffi/cuda/device.cc`)."""
    return any(f"jax_nvfp4 {words} " in str(error) for words in ("has no kernel", "was built without"))


def register(target: str) -> None:
    """Make the handlers of one custom call known to JAX, for every platform whose library has one."""
    TARGETS.append(target)
    for platform in LIBRARIES:
        if not missing(platform, target):
            handler = jax.ffi.pycapsule(getattr(library(platform), target))
            jax.ffi.register_ffi_target(target, handler, platform={"cpu": "cpu", "cuda": "CUDA"}[platform])
