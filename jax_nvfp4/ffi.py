"""The native libraries: where they are, loading them, and the custom calls they provide.

The CPU library and the CUDA library each register a handler for the same names, so nothing above this file asks on
which device it runs.
"""

from __future__ import annotations

import ctypes
import functools
from importlib import resources

import jax

LIBRARIES = {"cpu": "libjax_nvfp4_cpu.so", "cuda": "libjax_nvfp4_cuda.so"}
PREFIX = "nvfp4_"
"""What the names of all custom calls begin with."""

TARGETS: list[str] = []
"""The names of all custom calls, in the order in which the operations were defined."""


def directory():
    """The folder of the native libraries."""
    return resources.files("jax_nvfp4") / "_native"


@functools.cache
def _load(platform: str) -> tuple[ctypes.CDLL | None, str]:
    try:
        return ctypes.CDLL(str(directory() / LIBRARIES[platform])), ""
    except OSError as error:
        return None, str(error)


def library(platform: str) -> ctypes.CDLL | None:
    """The native library for "cpu" or "cuda", or None where this installation has none that loads."""
    return _load(platform)[0]


def missing(platform: str, target: str) -> str:
    """Why `target` cannot run on `platform`, and what to do; empty if it can."""
    handlers, error = _load(platform)
    if hasattr(handlers, target):
        return ""
    return (
        f"the {platform} library of jax_nvfp4 has no {target} ({error or 'it is older than this package'}): reinstall "
        "with `pip install --force-reinstall --no-deps .` on Linux"
        + (" x86-64, with JAX_NVFP4_CUDA_ARCHS not empty" if platform == "cuda" else "")
    )


def register(target: str) -> None:
    """Make the handlers of one custom call known to JAX, for every platform whose library has one."""
    TARGETS.append(target)
    for platform in LIBRARIES:
        if not missing(platform, target):
            handler = jax.ffi.pycapsule(getattr(library(platform), target))
            jax.ffi.register_ffi_target(target, handler, platform={"cpu": "cpu", "cuda": "CUDA"}[platform])
