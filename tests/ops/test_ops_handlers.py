"""A custom call with operands that no public function passes is an error that says what it expected, not a crash."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_nvfp4  # noqa: F401 - registers the custom calls

F32, BF16, U8, F8, U32 = jnp.float32, jnp.bfloat16, jnp.uint8, jnp.float8_e4m3fn, jnp.uint32
MODE = {"axis": np.int32(-1), "tile": False, "swizzled": False}
STOCHASTIC = {"axis": np.int32(-1), "swizzled": False}


def s(shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


X, G = s((32, 64)), s(())
CODES, SCALES = s((32, 32), U8), s((32, 4), F8)
SEED, ORIGIN = s((2,), U32), s((3,), U32)
Y16 = s((32, 64), BF16)

IMPOSSIBLE = {
    "amax: rank": ("nvfp4_amax", [s((64,))], [G], {"row_scope": False}, "2"),
    "amax: dtype": ("nvfp4_amax", [s((32, 64), U8)], [G], {"row_scope": False}, "F32"),
    "amax: result": ("nvfp4_amax", [X], [s((32,))], {"row_scope": False}, "(32)"),
    "amax: row result": ("nvfp4_amax", [X], [G], {"row_scope": True}, "(32)"),
    "quantize: columns": ("nvfp4_quantize", [s((32, 40)), G], [s((32, 20), U8), s((32, 2), F8)], MODE, "40"),
    "quantize: rows": (
        "nvfp4_quantize",
        [s((33, 64)), G],
        [s((64, 16), U8), s((64, 2), F8)],
        MODE | {"axis": np.int32(-2)},
        "33",
    ),
    "quantize: tile rows": (
        "nvfp4_quantize",
        [s((33, 64)), G],
        [s((33, 32), U8), s((33, 4), F8)],
        MODE | {"tile": True},
        "33",
    ),
    "quantize: axis": ("nvfp4_quantize", [X, G], [CODES, SCALES], MODE | {"axis": np.int32(0)}, "got 0"),
    "quantize: dtype": ("nvfp4_quantize", [s((32, 64), jnp.int32), G], [CODES, SCALES], MODE, "S32"),
    "quantize: amax dtype": ("nvfp4_quantize", [X, s((), BF16)], [CODES, SCALES], MODE, "BF16"),
    "quantize: amax shape": ("nvfp4_quantize", [X, s((31,))], [CODES, SCALES], MODE, "(31)"),
    "quantize: row amax, columnwise": (
        "nvfp4_quantize",
        [X, s((32,))],
        [s((64, 16), U8), s((64, 2), F8)],
        MODE | {"axis": np.int32(-2)},
        "per row",
    ),
    "quantize: row amax, tiles": ("nvfp4_quantize", [X, s((32,))], [CODES, SCALES], MODE | {"tile": True}, "per row"),
    "quantize: codes": ("nvfp4_quantize", [X, G], [s((32, 16), U8), SCALES], MODE, "(32, 16)"),
    "quantize: scales dtype": ("nvfp4_quantize", [X, G], [CODES, s((32, 4), U8)], MODE, "F8E4M3FN"),
    "quantize: swizzled scales": ("nvfp4_quantize", [X, G], [CODES, SCALES], MODE | {"swizzled": True}, "(128, 4)"),
    "stochastic: seed": (
        "nvfp4_quantize_stochastic",
        [X, G, s((4,), U32), ORIGIN],
        [CODES, SCALES],
        STOCHASTIC,
        "seed",
    ),
    "stochastic: origin": (
        "nvfp4_quantize_stochastic",
        [X, G, SEED, s((3,), jnp.int32)],
        [CODES, SCALES],
        STOCHASTIC,
        "origin",
    ),
    "dual: columns": (
        "nvfp4_quantize_dual",
        [s((32, 40)), G],
        [s((32, 20), U8), s((32, 2), F8), s((40, 16), U8), s((40, 2), F8)],
        {"swizzled": False},
        "40",
    ),
    "dual: column codes": (
        "nvfp4_quantize_dual",
        [X, G],
        [CODES, SCALES, CODES, SCALES],
        {"swizzled": False},
        "(64, 16)",
    ),
    "dequantize: scales": ("nvfp4_dequantize", [CODES, s((32, 5), F8), G], [Y16], {}, "(32, 5)"),
    "dequantize: amax": ("nvfp4_dequantize", [CODES, SCALES, s((32,), U32)], [Y16], {}, "amax"),
    "dequantize: result dtype": ("nvfp4_dequantize", [CODES, SCALES, G], [s((32, 64), U8)], {}, "U8"),
    "decode: result dtype": ("nvfp4_decode", [CODES, SCALES], [X], {}, "BF16"),
    "decode: codes": ("nvfp4_decode", [s((32, 30), U8), SCALES], [Y16], {}, "(32, 30)"),
    "qdq: result": ("nvfp4_qdq", [X, G], [Y16], {"tile": False}, "BF16"),
    "qdq: columns": ("nvfp4_qdq", [s((32, 40)), G], [s((32, 40))], {"tile": False}, "40"),
    "qdq: row amax, tiles": ("nvfp4_qdq", [X, s((32,))], [X], {"tile": True}, "per row"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_impossible_call_is_an_error(case):
    target, operands, results, attributes, said = IMPOSSIBLE[case]
    call = jax.jit(lambda *arrays: jax.ffi.ffi_call(target, results)(*arrays, **attributes))
    with pytest.raises(jax.errors.JaxRuntimeError, match="INVALID_ARGUMENT") as raised:
        jax.block_until_ready(call(*(jnp.zeros(o.shape, o.dtype) for o in operands)))
    assert said in str(raised.value)


def test_missing_attribute_is_an_error():
    call = jax.jit(lambda x, g: jax.ffi.ffi_call("nvfp4_quantize", [CODES, SCALES])(x, g, axis=np.int32(-1)))
    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.block_until_ready(call(jnp.zeros(X.shape), jnp.zeros(())))
