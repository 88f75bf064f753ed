"""Bad arguments are refused when the operation is called, with what was given, what was expected and the way out."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jax_nvfp4
from jax_nvfp4 import NVFP4, NVFP4_2D, NVFP4_QAT, NVFP4_TRAINING, QuantSpec, Recipe

X = np.zeros((32, 64), np.float32)
BATCH = np.zeros((2, 32, 64), np.float32)
ROW_SCOPE = QuantSpec(scope="row")


def key():
    return jax.random.key(0)


def call_origin(origin, axis=-1, **changes):
    return jax_nvfp4.quantize(X, axis=axis, **{"key": key(), "origin": origin} | changes)


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
    "spec: format": (lambda: QuantSpec("nvfp2"), ValueError, ("'nvfp2'", "'nvfp4'")),
    "spec: block": (lambda: QuantSpec(block=(1, 32)), ValueError, ("(1, 32)", "(1, 16) or (16, 16)")),
    **{
        f"spec: block {block}": (
            lambda block=block: QuantSpec(block=block),
            ValueError,
            (f"got {block!r}", "(1, 16) or"),
        )
        for block in (16, "1x16", (16, 1), (1.0, 16.0), [1], {"rows": 1})
    },
    "spec: block, an array": (lambda: QuantSpec(block=np.array([1, 16])), ValueError, ("(1, 16) or (16, 16)", "array")),
    "spec: format, a list": (lambda: QuantSpec(["nvfp4"]), ValueError, ("['nvfp4']", "('nvfp4'")),
    "spec: scope, an array": (
        lambda: QuantSpec(scope=np.zeros(2)),
        ValueError,
        ("array", "('tensor', 'row', 'group')"),
    ),
    "spec: scope": (lambda: QuantSpec(scope="block"), ValueError, ("'block'", "('tensor', 'row', 'group')")),
    "spec: scale_layout": (lambda: QuantSpec(scale_layout="tiled"), ValueError, ("'tiled'", "('linear', 'swizzled')")),
    "spec: tiles per row": (
        lambda: QuantSpec(block=(16, 16), scope="row"),
        ValueError,
        ("(16, 16)", "per row", "scope='tensor'"),
    ),
    # A given amax.
    **{
        f"amax {what} {i}": (lambda call=call, g=g: call(g), error, parts)
        for i, (what, call, g, error, parts) in enumerate(
            (
                (
                    "float16",
                    lambda g: jax_nvfp4.quantize(X, amax=g),
                    np.zeros((), np.float16),
                    TypeError,
                    ("got float16", "must be float32", "astype"),
                ),
                (
                    "int32",
                    lambda g: jax_nvfp4.qdq(X, amax=g),
                    np.int32(1),
                    TypeError,
                    ("got int32", "float32", "astype"),
                ),
                (
                    "per row for a matrix",
                    lambda g: jax_nvfp4.quantize(X, amax=g),
                    np.ones(32, np.float32),
                    ValueError,
                    ("got (32,)", "shape ()", "amax=None computes it"),
                ),
                (
                    "per matrix for row scope",
                    lambda g: jax_nvfp4.quantize(BATCH, ROW_SCOPE, amax=g),
                    np.ones(2, np.float32),
                    ValueError,
                    ("got (2,)", "shape (2, 32)", "one for all", "amax=None computes it"),
                ),
                (
                    "of shape (1,)",
                    lambda g: jax_nvfp4.quantize(X, amax=g),
                    np.ones(1, np.float32),
                    ValueError,
                    ("got (1,)", "shape ()", "one for all"),
                ),
                *(
                    (what, call, g, error, parts)
                    for call in (
                        lambda g: jax_nvfp4.quantize(X, amax=g),
                        lambda g: jax_nvfp4.qdq(X, amax=g),
                        lambda g: jax_nvfp4.quantize_dual(X, col_amax=g),
                    )
                    for what, g, error, parts in (
                        ("True", True, TypeError, ("got True", "a number or a float32 array")),
                        ("of bools", np.bool_(True), TypeError, ("got bool", "must be float32")),
                        ("negative", -1.5, ValueError, ("got -1.5", "never negative", "jax_nvfp4.amax")),
                        ("negative, an array", np.float32(-2), ValueError, ("got -2.0", "never negative")),
                        ("-inf", -np.inf, ValueError, ("got -inf", "never negative")),
                        ("huge", 10**400, ValueError, ("float32", "larger", "100000")),
                        ("complex", np.complex64(1), TypeError, ("got complex64", "must be float32")),
                        ("text", "auto", TypeError, ("got 'auto'", "a number or a float32 array")),
                        ("a list", [1.0], TypeError, ("got [1.0]", "a number or a float32 array")),
                        ("float64", np.zeros((), np.float64), TypeError, ("got float64", "astype")),
                    )
                ),
                (
                    "of another batch",
                    lambda g: jax_nvfp4.quantize_dual(BATCH, NVFP4_2D, amax=g),
                    np.ones(3, np.float32),
                    ValueError,
                    ("got (3,)", "shape (2,)", "amax=None computes it"),
                ),
            )
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
        ("(16, 16)", "stochastically", "leave out the key"),
    ),
    "a raw key of another generator": (
        lambda: jax_nvfp4.quantize(X, key=np.zeros(4, np.uint32)),
        TypeError,
        ("key_data.shape", "got shape=(4,)"),
    ),
    "key: nnx.Rngs": (lambda: jax_nvfp4.quantize(X, key=nnx.Rngs(0)), TypeError, ("key", "got Rngs", "call it")),
    "key: a stream of nnx.Rngs": (
        lambda: jax_nvfp4.dot(X, X, key=nnx.Rngs(0).params),
        TypeError,
        ("key", "got RngStream", "call it"),
    ),
    # The origin.
    "origin": (lambda: jax_nvfp4.quantize(X, key=key(), origin=(0, 1)), ValueError, ("(0, 1)", "(batch, row, column)")),
    **{
        f"origin {o} without a key": (lambda o=o: call_origin(o, key=None), ValueError, (repr(o), "without a key"))
        for o in ((0, 0, 0), (1,), 5)
    },
    **{
        f"origin {o} along axis {axis}": (lambda o=o, axis=axis: call_origin(o, axis=axis), error, parts)
        for o, axis, error, parts in (
            ((0, 0, 8), -1, ValueError, ("inside a block", "column", "multiple of 16", "got 8")),
            ((0, 24, 0), -2, ValueError, ("inside a block", "row", "multiple of 16", "got 24")),
            ((0, 0, np.int64(17)), -1, ValueError, ("column", "multiple of 16", "got 17")),
            ((0, 0, 1.5), -1, TypeError, ("column must be an integer", "got 1.5")),
            ((0, np.float32(16), 0), -1, TypeError, ("row must be an integer", "got np.float32(16.0)")),
            ((True, 0, 0), -1, TypeError, ("batch must be an integer", "got True")),
            ((np.arange(2), 0, 0), -1, TypeError, ("batch must be an integer", "got int64[2]")),
            ((-1, 0, 0), -1, ValueError, ("batch of -1", "from the start")),
            ((0, None, 0), -1, TypeError, ("row must be an integer", "got None")),
        )
    },
    "origin inside a block, both ways": (
        lambda: jax_nvfp4.quantize_dual(X, key=key(), origin=(0, 8, 0)),
        ValueError,
        ("row", "multiple of 16", "got 8"),
    ),
    "origin, traced, of floats": (
        lambda: jax.jit(lambda o: call_origin((0, 0, o)))(1.5),
        TypeError,
        ("column must be an integer", "got float"),
    ),
    # Dequantize and decode.
    "dequantize: an array": (lambda: jax_nvfp4.dequantize(X), TypeError, ("ndarray", "BlockScaled", "quantize")),
    "decode: an array": (lambda: jax_nvfp4.decode(X), TypeError, ("ndarray", "BlockScaled", "quantize")),
    "dequantize: dtype": (
        lambda: jax_nvfp4.dequantize(quantized(), jnp.int8),
        TypeError,
        ("got int8", "bfloat16, float16 or float32"),
    ),
    "dequantize: scales": (
        lambda: jax_nvfp4.dequantize(quantized(scales=jnp.zeros((32, 3), jnp.float8_e4m3fn))),
        ValueError,
        ("got (32, 3)", "scales must have shape (32, 4)"),
    ),
    # Padding.
    "pad: axis": (lambda: jax_nvfp4.pad_to_blocks(X, axis=2), ValueError, ("axis", "(32, 64)", "got 2")),
    "pad: multiple": (lambda: jax_nvfp4.pad_to_blocks(X, multiple=0), ValueError, ("at least 1", "16", "got 0")),
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
    "recipe: rht": (lambda: dataclasses.replace(NVFP4_TRAINING, rht=True), ValueError, ("RHT", "True")),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_says_given_expected_and_remedy(case):
    call, error, parts = BAD_CALLS[case]
    with pytest.raises(error) as raised:
        call()
    for part in parts:
        assert part in str(raised.value)


WRONG_TYPES = {
    "None": None,
    "text": "text",
    "a list": [1, 2],
    "a ragged list": [[1.0], [2.0, 3.0]],
    "a complex number": 1j,
    "complex64": np.complex64(1),
    "int32": np.int32(3),
    "a NumPy text": np.str_("text"),
    "an object": object(),
    "ints": np.zeros((32, 64), np.int32),
    "a dict": {"a": 1},
    "a function": jax.jit,
    "a BlockScaled": jax_nvfp4.quantize(X),
    "True": True,
    "a fraction": 1.5,
}
EVERY_ARGUMENT = {
    "amax: x": jax_nvfp4.amax,
    "amax: scope": lambda v: jax_nvfp4.amax(X, scope=v),
    "quantize: x": jax_nvfp4.quantize,
    "quantize: spec": lambda v: jax_nvfp4.quantize(X, v),
    "quantize: axis": lambda v: jax_nvfp4.quantize(X, axis=v),
    "quantize: amax": lambda v: jax_nvfp4.quantize(X, amax=v),
    "quantize: key": lambda v: jax_nvfp4.quantize(X, key=v),
    "quantize: origin": lambda v: jax_nvfp4.quantize(X, key=key(), origin=v),
    "quantize: origin, batch": lambda v: jax_nvfp4.quantize(X, key=key(), origin=(v, 0, 0)),
    "quantize_dual: x": jax_nvfp4.quantize_dual,
    "quantize_dual: spec": lambda v: jax_nvfp4.quantize_dual(X, v),
    "quantize_dual: col_spec": lambda v: jax_nvfp4.quantize_dual(X, col_spec=v),
    "quantize_dual: amax": lambda v: jax_nvfp4.quantize_dual(X, amax=v),
    "quantize_dual: col_amax": lambda v: jax_nvfp4.quantize_dual(X, col_amax=v),
    "quantize_dual: key": lambda v: jax_nvfp4.quantize_dual(X, key=v),
    "qdq: x": jax_nvfp4.qdq,
    "qdq: spec": lambda v: jax_nvfp4.qdq(X, v),
    "qdq: amax": lambda v: jax_nvfp4.qdq(X, amax=v),
    "dequantize: t": jax_nvfp4.dequantize,
    "dequantize: dtype": lambda v: jax_nvfp4.dequantize(quantized(), v),
    "decode: t": jax_nvfp4.decode,
    "pad_to_blocks: x": jax_nvfp4.pad_to_blocks,
    "pad_to_blocks: axis": lambda v: jax_nvfp4.pad_to_blocks(X, axis=v),
    "pad_to_blocks: multiple": lambda v: jax_nvfp4.pad_to_blocks(X, multiple=v),
    "swizzle_scales: scales": jax_nvfp4.swizzle_scales,
    "unswizzle_scales: scales": lambda v: jax_nvfp4.unswizzle_scales(v, (1, 1)),
    "unswizzle_scales: shape": lambda v: jax_nvfp4.unswizzle_scales(np.zeros((128, 4), np.uint8), v),
    "save: a BlockScaled": lambda v: jax_nvfp4.save("/dev/null", v),
    "QuantSpec: format": QuantSpec,
    "QuantSpec: block": lambda v: QuantSpec(block=v),
    "QuantSpec: scope": lambda v: QuantSpec(scope=v),
    "QuantSpec: scale_layout": lambda v: QuantSpec(scale_layout=v),
    "BlockScaled: axis": lambda v: quantized(axis=v),
    "BlockScaled: spec": lambda v: quantized(spec=v),
    "BlockScaled: codes": lambda v: quantized(codes=v),
    "BlockScaled: scales": lambda v: quantized(scales=v),
    "BlockScaled: amax": lambda v: quantized(amax=v),
}
MEANT = {  # None is a default; a number, a list of two ints, any array and a container have a meaning in some places
    "quantize: amax": ("None", "a fraction"),
    "quantize: key": ("None",),
    "quantize: origin": ("None",),
    "quantize: origin, batch": ("int32",),
    "quantize_dual: col_spec": ("None",),
    "quantize_dual: amax": ("None", "a fraction"),
    "quantize_dual: col_amax": ("None", "a fraction"),
    "quantize_dual: key": ("None",),
    "qdq: amax": ("None", "a fraction"),
    "dequantize: t": ("a BlockScaled",),
    "decode: t": ("a BlockScaled",),
    "save: a BlockScaled": ("a BlockScaled",),
    "QuantSpec: block": ("None",),
    "pad_to_blocks: x": ("a list", "ints"),
    "pad_to_blocks: multiple": ("int32",),
    "unswizzle_scales: shape": ("a list",),
}


@pytest.mark.parametrize("argument", EVERY_ARGUMENT)
@pytest.mark.parametrize("what", WRONG_TYPES)
def test_any_value_in_any_argument(argument, what):
    """An error that names the argument and what was given in few words, or a result where the value has a meaning."""
    call, value = EVERY_ARGUMENT[argument], WRONG_TYPES[what]
    if what in MEANT.get(argument, ()):
        call(value)
        return
    with pytest.raises((TypeError, ValueError)) as raised:
        call(value)
    message, name = str(raised.value), argument.split()[-1]
    assert name in message and "got " in message and len(message) < 400


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


def test_a_scalar_amax_serves_every_scope():
    for x, spec in ((BATCH, NVFP4), (BATCH, ROW_SCOPE), (X, ROW_SCOPE), (X, NVFP4), (BATCH, NVFP4_2D)):
        shape = x.shape[:-1] if spec == ROW_SCOPE else x.shape[:-2]
        expected = jax_nvfp4.quantize(x, spec, amax=np.full(shape, 2.5, np.float32))
        for scalar in (2.5, np.float32(2.5), jnp.float32(2.5), np.full((), 2.5, np.float32)):
            t = jax_nvfp4.quantize(x, spec, amax=scalar)
            assert t.amax.shape == shape and t.amax.dtype == jnp.float32
            jax.tree.map(lambda a, e: np.testing.assert_array_equal(a.view(e.dtype), e), t, expected)
    assert jax_nvfp4.quantize(X, amax=3).amax == 3


@pytest.mark.parametrize("integer", [np.int64, np.int32, np.uint8, int])
def test_numpy_integers_are_integers(integer):
    assert jax_nvfp4.quantize(BATCH, axis=integer(2)).axis == -1
    assert jax_nvfp4.quantize(BATCH, axis=integer(1)).axis == -2
    if integer is not np.uint8:
        assert jax_nvfp4.quantize(BATCH, axis=integer(-2)).axis == -2
    assert jax_nvfp4.quantize(X, key=key(), origin=[integer(1), integer(3), integer(16)]).shape == X.shape
    assert QuantSpec(block=(integer(16), integer(16))) == NVFP4_2D


def test_origins_count_modulo_two_to_the_32():
    x = np.random.default_rng(0).standard_normal((16, 32), np.float32)
    near, far = (jax_nvfp4.quantize(x, key=key(), origin=(1, turn + 5, turn + 16)) for turn in (0, 2**32))
    np.testing.assert_array_equal(near.codes, far.codes)


GUARDED = {
    "amax": jax_nvfp4.amax,
    "amax per row": lambda x: jax_nvfp4.amax(x, scope="row"),
    "quantize": jax_nvfp4.quantize,
    "quantize per row": lambda x: jax_nvfp4.quantize(x, ROW_SCOPE),
    "quantize columnwise": lambda x: jax_nvfp4.quantize(x, axis=-2),
    "quantize 16x16": lambda x: jax_nvfp4.quantize(x, NVFP4_2D),
    "quantize_dual": jax_nvfp4.quantize_dual,
    "quantize_dual 16x16": lambda x: jax_nvfp4.quantize_dual(x, NVFP4_2D),
    "qdq": jax_nvfp4.qdq,
    "dequantize": lambda x: jax_nvfp4.dequantize(jax_nvfp4.quantize(x)),
    "dequantize columnwise": lambda x: jax_nvfp4.dequantize(jax_nvfp4.quantize(x, axis=-2)),
    "dequantize swizzled": lambda x: jax_nvfp4.dequantize(jax_nvfp4.quantize(x, QuantSpec(scale_layout="swizzled"))),
    "decode": lambda x: jax_nvfp4.decode(jax_nvfp4.quantize(x)),
    "pad_to_blocks": lambda x: jax_nvfp4.pad_to_blocks(x, multiple=48),
    "swizzle": lambda x: jax_nvfp4.swizzle_scales(jax_nvfp4.quantize(x).scales),
}
GUARDED_KEYED = {
    "quantize": lambda x, k, g: jax_nvfp4.quantize(x, key=k),
    "quantize columnwise": lambda x, k, g: jax_nvfp4.quantize(x, axis=-2, key=k, origin=(1, 16, 16)),
    "quantize_dual": lambda x, k, g: jax_nvfp4.quantize_dual(x, key=k),
    "quantize, amax given": lambda x, k, g: jax_nvfp4.quantize(x, key=k, amax=g),
    "quantize per row, amax given": lambda x, k, g: jax_nvfp4.quantize(x, ROW_SCOPE, key=k, amax=g),
    "quantize_dual, amax given": lambda x, k, g: jax_nvfp4.quantize_dual(x, amax=g, col_amax=g),
    "qdq, amax given": lambda x, k, g: jax_nvfp4.qdq(x, amax=g),
}


@pytest.mark.parametrize("name", [*GUARDED, *(f"{name}, keyed" for name in GUARDED_KEYED)])
@pytest.mark.parametrize("shape", [(32, 64), (2, 32, 64)], ids=str)
def test_eager_calls_transfer_nothing(name, shape):
    """The very first call too: constants are part of the program, not operands of it."""
    device = jax.devices()[-1]
    x, k, g = jax.device_put((np.ones(shape, np.float32), key(), np.float32(2)), device)
    with jax.transfer_guard("disallow"):
        if name in GUARDED:
            result = GUARDED[name](x)
        else:
            result = GUARDED_KEYED[name.removesuffix(", keyed")](x, k, g)
    assert {d for leaf in jax.tree.leaves(result) for d in leaf.devices()} == {device}
