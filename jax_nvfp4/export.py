"""`jax.export` of programs that quantize."""

from __future__ import annotations

from jax.export import DisabledSafetyCheck

from jax_nvfp4 import ffi


def export_checks() -> list[DisabledSafetyCheck]:
    """The exemptions that `jax.export.export` needs: custom calls are exported only by name.

    `jax.export.export(jitted, disabled_checks=jax_nvfp4.export_checks())(...)`. The process that runs the exported
    program imports jax_nvfp4, which registers the calls; their names and attributes are kept compatible within a
    minor version.
    """
    return [DisabledSafetyCheck.custom_call(target) for target in ffi.TARGETS]
