"""The GPU families that kernels are compiled for: which devices run them, and what their instructions can do.

A family is one entry here. The build, `primitives/family.py`, the C++ that picks the kernels of a device and the doctor
read it; nothing here imports the DSL, JAX or the package.

    python jax_nvfp4/kernels/families.py native

prints the families that a build is for, and with `--requirements` what to install before it.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import sys
from typing import NamedTuple


class Family(NamedTuple):
    """Devices that run the same machine code.

    Attributes:
        capabilities: the compute capabilities that run it.
        fp4_conversion: whether it has instructions that convert float32 to E2M1 and back.
        packed_f32: whether it has instructions that compute with two float32 at once.
    """

    capabilities: tuple[str, ...]
    fp4_conversion: bool
    packed_f32: bool


FAMILIES = {
    "sm_90a": Family(("9.0",), fp4_conversion=False, packed_f32=False),
    "sm_100f": Family(("10.0", "10.3"), fp4_conversion=True, packed_f32=True),
    "sm_120f": Family(("12.0", "12.1"), fp4_conversion=True, packed_f32=True),
}
"""Every family by the name of the target that it is compiled for. The family targets sm_100f and sm_120f give the
machine code of sm_100a, sm_103a and sm_120a."""

REQUIREMENTS = {
    "nvidia-cutlass-dsl": "nvidia-cutlass-dsl>=4.8,<5",
    "nvidia-cuda-crt": "nvidia-cuda-crt>=13.0,<13.1",
    "nvidia-cuda-runtime": "nvidia-cuda-runtime>=13.0,<13.1",
}
"""What compiling kernels and linking the CUDA library takes, as requirements; none of it is needed afterwards."""

VARIABLE = "JAX_NVFP4_CUDA_ARCHS"
"""The environment variable of an installation, and the CMake variable, that name the families."""

_NO_DEVICE, _STUB_LIBRARY = 100, 34
_MAJOR, _MINOR = 75, 76  # attributes of a CUDA device


def family_of(capability: str) -> str | None:
    """The family whose kernels run on a compute capability such as "9.0", None if there is none."""
    return next((name for name, family in FAMILIES.items() if capability in family.capabilities), None)


def capabilities() -> list[str]:
    """The compute capabilities of this machine's GPUs; empty without an NVIDIA driver.

    Raises:
        RuntimeError: there is a driver, but it does not answer.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []

    def call(function: str, *arguments) -> int:
        status = getattr(cuda, function)(*arguments)
        if status not in (0, _NO_DEVICE, _STUB_LIBRARY):
            raise RuntimeError(
                f"the NVIDIA driver of this machine answers {function} with error {status}, so its GPUs are unknown: "
                f"name the families yourself, {VARIABLE}={','.join(FAMILIES)} or fewer, or {VARIABLE}= for none"
            )
        return status

    if call("cuInit", 0):
        return []
    count, device, major, minor = (ctypes.c_int() for _ in range(4))
    call("cuDeviceGetCount", ctypes.byref(count))
    found = set()
    for ordinal in range(count.value):
        call("cuDeviceGet", ctypes.byref(device), ordinal)
        call("cuDeviceGetAttribute", ctypes.byref(major), _MAJOR, device)
        call("cuDeviceGetAttribute", ctypes.byref(minor), _MINOR, device)
        found.add(f"{major.value}.{minor.value}")
    return sorted(found)


def resolve(asked: str) -> list[str]:
    """The families to build for.

    Args:
        asked: families separated by commas, "all", "native" for those of this machine's GPUs, or "" for none.

    Raises:
        ValueError: an unknown family.
        RuntimeError: "native" where the NVIDIA driver does not answer.
    """
    if asked == "all":
        return list(FAMILIES)
    if asked == "native":
        found = {capability: family_of(capability) for capability in capabilities()}
        for capability in (c for c, family in found.items() if family is None):
            print(f"jax_nvfp4 has no kernels for this machine's compute capability {capability}", file=sys.stderr)
        return [family for family in FAMILIES if family in found.values()]
    names = list(dict.fromkeys(filter(None, re.split("[,; ]+", asked))))
    if unknown := [name for name in names if name not in FAMILIES]:
        raise ValueError(
            f"{VARIABLE} is {asked!r}, and {unknown[0]!r} is no GPU family: choose from {', '.join(FAMILIES)}, or say "
            "all, native (this machine's GPUs) or nothing"
        )
    return names


def requirements(asked: str) -> list[str]:
    """What must be installed to build for `asked`, which is as in `resolve`."""
    return list(REQUIREMENTS.values()) if resolve(asked) else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("asked", help=f"some of {','.join(FAMILIES)}, or all, native (this machine's GPUs), or ''")
    parser.add_argument("--requirements", action="store_true", help="print what to install instead, one a line")
    options = parser.parse_args()
    try:
        print("\n".join(requirements(options.asked)) if options.requirements else ";".join(resolve(options.asked)))
    except (RuntimeError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
