"""Bad arguments are refused when the operation is called, with what was given, what was expected and the way out."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_nvfp4
from jax_nvfp4 import NVFP4, NVFP4_2D, NVFP4_QAT, NVFP4_TRAINING, QuantSpec, Recipe

X = np.zeros((32, 64), np.float32)
BATCH = np.zeros((2, 32, 64), np.float32)
ROW_SCOPE = QuantSpec(scope="row")


def key():
    return jax.random.key(0)


def quantized(**changes):
    return dataclasses.replace(jax_nvfp4.quantize(X), **changes)


BAD_CALLS = {
    # What x may be, for every operation that takes one.
    **{
        f"{name}: {what}": (lambda call=call, x=x: call(x), error, parts)
        for name, call in {
            "amax": jax_nvfp4.amax,
            "quantize": jax_nvfp4.quantize,
            "quantize_dual": jax_nvfp4.quantize_dual,
            "qdq": jax_nvfp4.qdq,
        }.items()
        for what, x, error, parts in (
            ("int dtype", np.zeros((32, 64), np.int32), TypeError, ("got int32", "float16 or float32", "cast")),
            ("float8", X.astype(jnp.float8_e4m3fn), TypeError, ("got float8_e4m3fn", "bfloat16", "cast")),
            ("rank 1", X[0], ValueError, ("(64,)", "rank >= 2", "x[None]")),
            ("rank 0", np.float32(1), ValueError, ("()", "rank >= 2", "add an axis")),
        )
    },
    "amax: scope": (lambda: jax_nvfp4.amax(X, scope="column"), ValueError, ("'column'", "('tensor', 'row')")),
    # Whole blocks.
    **{
        f"{name}: {shape}": (lambda call=call, shape=shape: call(np.zeros(shape, np.float32)), ValueError, parts)
        for name, shape, call, parts in (
            ("quantize", (32, 1), jax_nvfp4.quantize, ("axis -1", "size 1", "block size 16", "pad_to_blocks")),
            ("quantize", (32, 40), jax_nvfp4.quantize, ("axis -1", "size 40", "block size 16", "(32, 40)")),
            (
                "quantize columnwise",
                (33, 64),
                lambda x: jax_nvfp4.quantize(x, axis=-2),
                ("axis -2", "size 33", "block size 16", "pad_to_blocks(x, axis=-2)"),
            ),
            (
                "quantize 16x16",
                (33, 64),
                lambda x: jax_nvfp4.quantize(x, NVFP4_2D),
                ("axis -2", "size 33", "pad_to_blocks(x, axis=-2)"),
            ),
            ("quantize_dual", (32, 40), jax_nvfp4.quantize_dual, ("axis -1", "size 40", "pad_to_blocks")),
            ("quantize_dual", (40, 32), jax_nvfp4.quantize_dual, ("axis -2", "size 40", "pad_to_blocks")),
            ("qdq", (32, 40), jax_nvfp4.qdq, ("axis -1", "size 40", "pad_to_blocks")),
            ("qdq 16x16", (40, 32), lambda x: jax_nvfp4.qdq(x, NVFP4_2D), ("axis -2", "size 40", "pad_to_blocks")),
        )
    },
    # The axis.
    **{
        f"axis {axis}": (lambda axis=axis: jax_nvfp4.quantize(BATCH, axis=axis), error, parts)
        for axis, error, parts in (
            (0, ValueError, ("got 0", "-1 or -2", "moveaxis")),
            (-3, ValueError, ("got -3", "-1 or -2", "moveaxis")),
            (3, ValueError, ("got 3", "-1 or -2", "moveaxis")),
            (-4, ValueError, ("got -4", "-1 or -2", "moveaxis")),
            (1.0, TypeError, ("got 1.0", "must be an int")),
            (None, TypeError, ("got None", "must be an int")),
        )
    },
    "row scope columnwise": (
        lambda: jax_nvfp4.quantize(X, ROW_SCOPE, axis=-2),
        ValueError,
        ("axis -2", "axis -1 only"),
    ),
    # The spec.
    "spec: a string": (lambda: jax_nvfp4.quantize(X, "nvfp4"), TypeError, ("'nvfp4'", "QuantSpec", "jax_nvfp4.NVFP4")),
    "qdq: spec": (lambda: jax_nvfp4.qdq(X, None), TypeError, ("None", "QuantSpec", "jax_nvfp4.NVFP4")),
    "col_spec": (lambda: jax_nvfp4.quantize_dual(X, col_spec=16), TypeError, ("col_spec", "16", "jax_nvfp4.NVFP4")),
    "spec: format": (lambda: QuantSpec("mxfp8"), ValueError, ("'mxfp8'", "'nvfp4'")),
    "spec: block": (lambda: QuantSpec(block=(1, 32)), ValueError, ("(1, 32)", "(1, 16) or (16, 16)")),
    "spec: scope": (lambda: QuantSpec(scope="block"), ValueError, ("'block'", "('tensor', 'row')")),
    "spec: scale_layout": (lambda: QuantSpec(scale_layout="tiled"), ValueError, ("'tiled'", "('linear', 'swizzled')")),
    "spec: tiles per row": (
        lambda: QuantSpec(block=(16, 16), scope="row"),
        ValueError,
        ("16x16", "per row", "scope='tensor'"),
    ),
    # A given amax.
    **{
        f"amax {what}": (lambda call=call, g=g: call(g), error, parts)
        for what, call, g, error, parts in (
            (
                "float16",
                lambda g: jax_nvfp4.quantize(X, amax=g),
                np.zeros((), np.float16),
                TypeError,
                ("got float16", "must be float32", "astype"),
            ),
            ("int32", lambda g: jax_nvfp4.qdq(X, amax=g), np.int32(1), TypeError, ("got int32", "float32", "astype")),
            (
                "per row for a matrix",
                lambda g: jax_nvfp4.quantize(X, amax=g),
                np.ones(32, np.float32),
                ValueError,
                ("got (32,)", "shape ()", "jax_nvfp4.amax(x, scope='tensor')"),
            ),
            (
                "per matrix for row scope",
                lambda g: jax_nvfp4.quantize(X, ROW_SCOPE, amax=g),
                np.float32(1),
                ValueError,
                ("got ()", "shape (32,)", "jax_nvfp4.amax(x, scope='row')"),
            ),
            (
                "of another batch",
                lambda g: jax_nvfp4.quantize_dual(BATCH, NVFP4_2D, amax=g),
                np.ones(3, np.float32),
                ValueError,
                ("got (3,)", "shape (2,)", "jax_nvfp4.amax"),
            ),
        )
    },
    # The key.
    **{
        f"{name}: key {what}": (lambda call=call, k=k: call(k()), error, parts)
        for name, call in {
            "quantize": lambda k: jax_nvfp4.quantize(X, key=k),
            "dot": lambda k: jax_nvfp4.dot(X, X, key=k),
        }.items()
        for what, k, error, parts in (
            ("an int", lambda: 0, TypeError, ("got 0", "one JAX random key", "jax.random.key(0)")),
            ("floats", lambda: np.zeros(2, np.float32), TypeError, ("got float32", "jax.random.key(0)")),
            ("a batch", lambda: jax.random.split(key()), TypeError, ("(2,)", "one JAX random key")),
        )
    },
    "key with 16x16 blocks": (
        lambda: jax_nvfp4.quantize(X, NVFP4_2D, key=key()),
        ValueError,
        ("16x16", "stochastically", "leave out the key"),
    ),
    "origin": (lambda: jax_nvfp4.quantize(X, key=key(), origin=(0, 1)), ValueError, ("(0, 1)", "(batch, row, column)")),
    # Dequantize and decode.
    "dequantize: an array": (lambda: jax_nvfp4.dequantize(X), TypeError, ("ndarray", "BlockScaled", "quantize")),
    "decode: an array": (lambda: jax_nvfp4.decode(X), TypeError, ("ndarray", "BlockScaled", "quantize")),
    "dequantize: dtype": (
        lambda: jax_nvfp4.dequantize(quantized(), jnp.int8),
        TypeError,
        ("got int8", "bfloat16, float16, float32"),
    ),
    "dequantize: scales": (
        lambda: jax_nvfp4.dequantize(quantized(scales=jnp.zeros((32, 3), jnp.float8_e4m3fn))),
        ValueError,
        ("got (32, 3)", "scales of shape (32, 4)"),
    ),
    # Swizzle.
    "swizzle: wide elements": (lambda: jax_nvfp4.swizzle_scales(X), TypeError, ("got float32", "one byte")),
    "swizzle: rank": (
        lambda: jax_nvfp4.swizzle_scales(np.zeros(4, np.uint8)),
        ValueError,
        ("got shape (4,)", "rank >= 2"),
    ),
    "unswizzle: shape": (
        lambda: jax_nvfp4.unswizzle_scales(np.zeros((128, 4), np.uint8), (129, 4)),
        ValueError,
        ("got (128, 4)", "(256, 4)", "(129, 4)"),
    ),
    # dot and its parts.
    "dot: recipe": (
        lambda: jax_nvfp4.dot(X, X, "nvfp4"),
        TypeError,
        ("'nvfp4'", "must be a Recipe", "jax_nvfp4.NVFP4_TRAINING"),
    ),
    "dot: dtypes": (
        lambda: jax_nvfp4.dot(X, X.astype(np.float16)),
        TypeError,
        ("float32 and float16", "one dtype", "cast"),
    ),
    "dot: int x": (lambda: jax_nvfp4.dot(X.astype(np.int8), X), TypeError, ("int8", "float32", "cast")),
    "dot: int w": (lambda: jax_nvfp4.dot(X, X.astype(np.int8)), TypeError, ("got int8", "float16 or float32", "cast")),
    "dot: shapes": (lambda: jax_nvfp4.dot(X, X.T), ValueError, ("(32, 64) and (64, 32)", "(..., K)", "(N, K)")),
    "dot: rank of w": (lambda: jax_nvfp4.dot(X, BATCH), ValueError, ("(2, 32, 64)", "(N, K)")),
    "dot: x of rank 0": (lambda: jax_nvfp4.dot(np.float32(1), X), ValueError, ("()", "(..., K)")),
    "dot: K": (
        lambda: jax_nvfp4.dot(X[:, :40], X[:, :40]),
        ValueError,
        ("K = 40", "multiple of 16", "pad_to_blocks(w, axis=-1)", "x likewise"),
    ),
    "dot: K, one weight": (
        lambda: jax_nvfp4.dot(X[:, :40], X[:, :40], NVFP4_QAT),
        ValueError,
        ("K = 40", "multiple of 16", "pad_to_blocks(w, axis=-1)", "x likewise"),
    ),
    "dot: N": (lambda: jax_nvfp4.dot(X, X[:20]), ValueError, ("N = 20", "multiple of 16", "pad_to_blocks(w, axis=-2)")),
    "matmul: axis": (
        lambda: jax_nvfp4.block_scaled_matmul(quantized(), jax_nvfp4.quantize(X, axis=-2), jnp.float32),
        ValueError,
        ("axis=-2", "last axis", "b.T"),
    ),
    "matmul: row scope": (
        lambda: jax_nvfp4.block_scaled_matmul(jax_nvfp4.quantize(X, ROW_SCOPE), quantized(), jnp.float32),
        ValueError,
        ("scope='row'", "one amax"),
    ),
    # Recipes.
    "recipe: x alone": (lambda: Recipe(NVFP4, NVFP4_2D, None), ValueError, ("both or neither", "w alone")),
    "recipe: 1x16 weight": (lambda: Recipe(NVFP4, NVFP4, NVFP4), ValueError, ("16x16", "NVFP4_2D")),
    "recipe: row scope": (lambda: Recipe(ROW_SCOPE, NVFP4_2D, NVFP4), ValueError, ("scope='tensor'", "columnwise")),
    "recipe: layout": (
        lambda: Recipe(QuantSpec(scale_layout="swizzled"), NVFP4_2D, NVFP4),
        ValueError,
        ("linear scales",),
    ),
    "recipe: rht": (lambda: dataclasses.replace(NVFP4_TRAINING, rht=True), ValueError, ("rht=True", "rht=False")),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_says_given_expected_and_remedy(case):
    call, error, parts = BAD_CALLS[case]
    with pytest.raises(error) as raised:
        call()
    for part in parts:
        assert part in str(raised.value)


@pytest.mark.parametrize("case", ["quantize: rank 1", "quantize: (32, 40)", "axis 0", "dot: N"])
def test_refused_while_tracing(case):
    call, error, _ = BAD_CALLS[case]
    with pytest.raises(error):
        jax.jit(call).trace()


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 31, 272, 2880])
def test_pad_to_blocks_makes_any_size_quantizable(size):
    x = np.random.default_rng(0).standard_normal((3, size), np.float32)
    padded = jax_nvfp4.pad_to_blocks(x)
    assert padded.shape == (3, -(-size // 16) * 16)
    y = jax_nvfp4.qdq(padded)
    np.testing.assert_array_equal(y[:, size:], 0)
    if size % 16 == 0:
        np.testing.assert_array_equal(padded, x)
    else:
        with pytest.raises(ValueError, match=f"size {size}"):
            jax_nvfp4.quantize(x)
