"""What the GPU family that is being compiled for can do. Only primitives ask.

The DSL compiles for one family per process and takes its name from the environment; so does this.
"""

from __future__ import annotations

import os

from jax_nvfp4.kernels.families import FAMILIES, Family


def _family() -> Family:
    return FAMILIES[os.environ["CUTE_DSL_ARCH"]]


def has_fp4_conversion() -> bool:
    """Whether float32 to E2M1 and back are instructions."""
    return _family().fp4_conversion


def has_packed_f32() -> bool:
    """Whether one instruction can compute with two float32."""
    return _family().packed_f32
