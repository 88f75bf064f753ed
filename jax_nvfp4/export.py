"""`jax.export` of programs that quantize, and of those that take or return a `BlockScaled`."""

from __future__ import annotations

import json

from jax.export import DisabledSafetyCheck, register_pytree_node_serialization

from jax_nvfp4 import ffi, io
from jax_nvfp4.tensor import BlockScaled


def export_checks() -> list[DisabledSafetyCheck]:
    """The exemptions that `jax.export.export` needs: custom calls are exported only by name.

    `jax.export.export(jitted, disabled_checks=jax_nvfp4.export_checks())(...)`. The process that runs the exported
    program imports jax_nvfp4, which registers the calls; their names and attributes are kept compatible within a
    minor version.
    """
    return [DisabledSafetyCheck.custom_call(target) for target in ffi.TARGETS]


register_pytree_node_serialization(
    BlockScaled,
    serialized_name=io.KIND,
    serialize_auxdata=lambda static: json.dumps(io.static_fields(*static)).encode(),
    deserialize_auxdata=lambda text: io.static_from_fields(json.loads(text)),
)
