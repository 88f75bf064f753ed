"""The GPU families that kernels are compiled for: which devices run them, and what their instructions can do.

A family is one entry here. The build, `primitives/family.py`, the C++ that picks the kernels of a device and the doctor
read it; nothing here imports the DSL.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Devices that run the same machine code.

    Attributes:
        arch: the target of the compiler, and the family's name.
        capabilities: the compute capabilities that run it.
        fp4_conversion: whether it has instructions that convert float32 to E2M1 and back.
        packed_f32: whether it has instructions that compute with two float32 at once.
    """

    arch: str
    capabilities: tuple[str, ...]
    fp4_conversion: bool
    packed_f32: bool


FAMILIES = {
    family.arch: family
    for family in (
        Family("sm_90a", ("9.0",), fp4_conversion=False, packed_f32=False),
        Family("sm_100f", ("10.0", "10.3"), fp4_conversion=True, packed_f32=True),
        Family("sm_120f", ("12.0", "12.1"), fp4_conversion=True, packed_f32=True),
    )
}
"""Every family by name. The targets sm_100f and sm_120f give the machine code of sm_100a, sm_103a and sm_120a."""

FAMILY_OF = {capability: family.arch for family in FAMILIES.values() for capability in family.capabilities}
"""Compute capability -> the name of the family whose kernels run there."""
