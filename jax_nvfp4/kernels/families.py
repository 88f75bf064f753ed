"""The GPU families that kernels are compiled for: which devices run them, and what their instructions can do.

A family is one entry here. The build, `primitives/family.py`, the C++ that picks the kernels of a device and the doctor
read it. Nothing is imported from JAX, from the DSL or from this package.
"""

from __future__ import annotations

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


def family_of(capability: str) -> str | None:
    """The family whose kernels run on a compute capability such as "9.0", None if there is none."""
    return next((name for name, family in FAMILIES.items() if capability in family.capabilities), None)
