"""Every operation of the table gives the bytes of the oracle, on every family of data (docs/numerics.md)."""

import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jax_nvfp4
from jax_nvfp4 import NVFP4, NVFP4_2D, BlockScaled, oracle
from jax_nvfp4.formats import FLOAT_DTYPES
from jax_nvfp4.ops.quantize import _quantize
from jax_nvfp4.testing import CASES, FAMILIES, arrays, assert_same_bytes, key_words, make, random_key
from jax_nvfp4.testing.cases import DUAL, SWIZZLED

SHAPES = [(1, 16), (16, 1), (33, 48), (48, 33), (160, 144), (2, 3, 32, 64)]
LARGE_SHAPES = [(129, 2880), (2880, 129), (304, 272), (1, 65536), (65536, 16), (16, 65536), (5, 256, 512), (1024, 2048)]
KNOWN_BLOCK = np.array(
    [int(w, 16) for w in "bf4d bf33 bf1a bf00 becd be9a be4d bdcd 0 3dcd 3e4d 3e9a 3ecd 3f00 3f1a 3f33".split()],
    np.uint16,
).view(ml_dtypes.bfloat16)
SPECS = [
    (case.spec, *case.axes)
    for case in CASES
    if case.verb == "quantize" and not (case.is_dual or case.is_stochastic or case.is_swizzled)
    if case.spec.facts.has_amax and case.spec.rht is None and case.spec.scope != "group"
]
"""Every spec and axis of an operand that can be given its amax, one for all directions and groups."""


def name(value):
    return value.name if hasattr(value, "name") else str(value).replace(" ", "")


def check(case, x, what=""):
    actual, expected = case.run(jnp.asarray(x)), case.reference(x)
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert_same_bytes(a, e, f"{case.name} result {i} of {what} {x.shape} {x.dtype}")


def fitting(shapes):
    """Every case with every shape that it takes and every dtype."""
    return [
        (case, shape, dtype)
        for case, shape in itertools.product(CASES, shapes)
        if case.fits(shape)
        for dtype in case.dtypes
    ]


@pytest.mark.parametrize("case, shape, dtype", fitting(SHAPES), ids=name)
def test_equals_oracle(case, shape, dtype):
    for seed, family in enumerate(FAMILIES):
        check(case, make(family, shape, dtype, seed), family)


@pytest.mark.full
@pytest.mark.parametrize("case, shape, dtype", fitting(LARGE_SHAPES), ids=name)
def test_equals_oracle_on_large_shapes(case, shape, dtype):
    for seed, family in enumerate(FAMILIES):
        check(case, make(family, shape, dtype, seed + 100), family)


@pytest.mark.parametrize("case", CASES, ids=name)
def test_jit_equals_eager(case):
    x = jnp.asarray(make("block_spread", (160, 160), "bfloat16"))
    for jitted, eager in zip(jax.jit(case.run)(x), case.run(x), strict=True):
        assert_same_bytes(jitted, eager, case.name)


@pytest.mark.parametrize("case", CASES, ids=name)
@pytest.mark.parametrize("shape", [(0, 32), (32, 0), (0, 32, 32), (2, 0, 96)], ids=name)
def test_empty_operands_give_empty_results(case, shape):
    check(case, np.zeros(shape, np.float32))


@settings(max_examples=10, deadline=None)
@given(
    case=st.sampled_from(CASES),
    batch=st.lists(st.integers(1, 3), max_size=2),
    blocks=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    family=st.sampled_from(list(FAMILIES)),
    dtype=st.sampled_from(FLOAT_DTYPES),
)
def test_any_shape(case, batch, blocks, family, dtype):
    shape = (*batch, *(n * multiple for n, multiple in zip(blocks, case.multiples, strict=True)))
    check(case, make(family, shape, dtype), family)


@settings(max_examples=40, deadline=None)
@given(case=st.sampled_from(CASES), dtype=st.sampled_from(FLOAT_DTYPES), data=st.binary(min_size=2048, max_size=2048))
def test_any_bits(case, dtype, data):
    dtype = np.dtype(dtype)
    check(case, np.resize(np.frombuffer(data, dtype), (32, 32)))


@settings(max_examples=100, deadline=None)
@given(
    spec=st.sampled_from(SPECS),
    g=st.floats(min_value=0, width=32) | st.just(np.nan),
    exponent=st.integers(-8, 8),
    seed=st.integers(0, 99),
)
def test_any_given_amax(spec, g, exponent, seed):
    """Smaller and larger than the true amax, subnormal, Inf and NaN included."""
    spec, axis = spec
    limit = g if 0 < g < 3e38 else 1
    x = np.random.default_rng(seed).standard_normal((32, 32)) * np.clip(np.ldexp(limit, exponent), 1e-45, 1e38)
    check_given_amax(x.astype(np.float32), spec, axis, np.float32(g))


@pytest.mark.parametrize("factor", [0, 1e-3, 0.5, 1, 2, 1e3, np.inf, np.nan])
@pytest.mark.parametrize("spec, axis", SPECS, ids=name)
@pytest.mark.parametrize("family", ["normal", "order_sensitive", "nan_block", "inf_block"])
def test_given_amax(factor, spec, axis, family):
    check_given_amax(make(family, (32, 48), "bfloat16"), spec, axis, np.float32(3.7 * factor))


def check_given_amax(x, spec, axis, g):
    g = np.full(x.shape[:-1] if spec.scope == "row" else (), g, np.float32)
    t, expected = jax_nvfp4.quantize(x, spec, axis=axis, amax=g), oracle.quantize(x, spec, axis=axis, amax=g)
    for what, a, e in zip(("codes", "scales", "amax"), arrays(t), arrays(expected), strict=True):
        assert_same_bytes(a, e, f"{what}, amax {g}")
    if axis == -1:
        assert_same_bytes(jax_nvfp4.qdq(x, spec, amax=g), oracle.qdq(x, spec, amax=g), f"qdq, amax {g}")
    y = jax_nvfp4.dequantize(t, jnp.float32)
    assert_same_bytes(y, oracle.dequantize(expected, "float32"), f"dequantize, amax {g}")


def test_every_16_bit_value():
    """Section 1 through the whole operation: every bfloat16 and float16, under several amaxes."""
    for dtype in (ml_dtypes.bfloat16, np.float16):
        x = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(dtype).reshape(256, 256)
        for g in (1e-30, 0.1, 1.0, 7.875, 2688.0, 1e30):
            for spec, axis in ((NVFP4, -1), (NVFP4, -2)):
                check_given_amax(x, spec, axis, np.float32(g))


def test_every_code_with_every_scale():
    """Section 2 step 7 and section 8: 16 codes by 256 scale bytes."""
    codes = np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 32, axis=1).view(ml_dtypes.float8_e4m3fn)
    for g in map(np.float32, (0, 1e-42, 1e-36, 1e-20, 0.7, 2688, 1e30, 3e38, np.inf, np.nan)):
        t = BlockScaled(*map(jnp.asarray, (codes, scales, g)), NVFP4, -1)
        expected = oracle.Quantized(codes, scales, g, NVFP4, -1)
        for dtype in FLOAT_DTYPES:
            y = jax_nvfp4.dequantize(t, dtype)
            assert_same_bytes(y, oracle.dequantize(expected, dtype), f"amax {g}")
    assert_same_bytes(jax_nvfp4.decode(t), oracle.decode(expected), "decode")


def test_known_answers():
    """Section 13: the block and its dequantized values."""
    t = jax_nvfp4.quantize(KNOWN_BLOCK[None], amax=2.5)
    assert np.asarray(t.scales).tobytes().hex() == "71"
    assert np.asarray(t.codes).tobytes().hex(" ") == "ff ee cd 9b 10 43 65 76"
    y = np.asarray(jax_nvfp4.dequantize(t)).view(np.uint16)[0]
    expected = "bf4e bf4e bf09 bf09 bece be89 be4e bd89 0000 3d89 3e4e 3e89 3ece 3f09 3f09 3f4e"
    assert [f"{w:04x}" for w in y] == expected.split()


def test_known_answer_of_stochastic_rounding():
    """Section 13: block 3 of column 5 with key words (1, 2)."""
    x = np.zeros((64, 6), ml_dtypes.bfloat16)
    x[48:, 5] = KNOWN_BLOCK
    mode = NVFP4.mode(-2, stochastic=True)
    seed, origin = jnp.array([1, 2], jnp.uint32), jnp.zeros(3, jnp.uint32)
    codes, _ = _quantize(jnp.asarray(x), jnp.float32(2.5), seed, origin, mode=mode)
    assert np.asarray(codes[5, 24:]).tobytes().hex(" ") == "ff de cd 9b 10 43 65 77"


@pytest.mark.parametrize("axis", [-1, -2])
def test_origin_continues_the_random_stream(axis):
    """Section 6: a part of an array, told where it starts, is rounded as in the whole array."""
    x = make("uniform", (96, 128), "float32")
    whole = jax_nvfp4.quantize(x, axis=axis, amax=12.0, key=random_key())
    part = jax_nvfp4.quantize(x[32:64, 64:], axis=axis, amax=12.0, key=random_key(), origin=(0, 32, 64))
    rows, columns = (slice(32, 64), slice(32, 64)) if axis == -1 else (slice(64, 128), slice(16, 32))
    assert_same_bytes(part.codes, whole.codes[rows, columns], "codes")
    other = jax_nvfp4.quantize(x[32:64, 64:], axis=axis, amax=12.0, key=random_key(), origin=(1, 32, 64))
    expected = oracle.quantize(
        x[32:64, 64:],
        axis=axis,
        amax=12.0,
        key=key_words(random_key()),
        origin=np.array((1, 32, 64), np.uint32),
    )
    assert_same_bytes(other.codes, expected.codes, "codes of batch 1")


def test_batch_elements_have_their_own_amax():
    """Section 2, scopes: a batch is a loop over its matrices; in the oracle, whose bytes every case has."""
    x = make("normal", (3, 32, 64), "bfloat16") * np.array([1, 100, 1e-3], ml_dtypes.bfloat16)[:, None, None]
    for case in CASES:
        if case.is_stochastic:  # draws by its batch index
            continue
        check(case, x)
        loop = [case.reference(matrix) for matrix in x]
        for batched, one_by_one in zip(case.reference(x), zip(*loop, strict=True), strict=True):
            assert_same_bytes(batched, np.stack(one_by_one), case.name)


def test_any_axis_spelling():
    x = jnp.asarray(make("normal", (2, 16, 32), "bfloat16"))
    for axis, same in ((2, -1), (1, -2)):
        codes = [jax_nvfp4.quantize(x, axis=a).codes for a in (axis, same)]
        assert_same_bytes(*codes, f"axis {axis}")


def test_dual_directions_share_their_codes():
    """Section 4: W[i, j] has one code, whichever way it is laid out, and the scale of a tile fills its 16 rows."""
    x = make("block_spread", (64, 96), "bfloat16")
    row, column = jax_nvfp4.quantize_dual(x, NVFP4_2D)
    unpack = oracle.nvfp4.e2m1.unpack
    assert_same_bytes(unpack(np.asarray(row.codes)).T, unpack(np.asarray(column.codes)), "codes")
    block = NVFP4_2D.facts.block
    scales = np.asarray(row.scales).view(np.uint8).reshape(4, block, 6)
    assert (scales == scales[:, :1]).all()
    assert_same_bytes(scales[:, 0].T, np.asarray(column.scales).view(np.uint8)[::block], "scales")


def test_dual_outputs_have_layouts_of_their_own():
    x = jnp.asarray(make("normal", (48, 80), "bfloat16"))
    for spec, col_spec in ((NVFP4, SWIZZLED), (SWIZZLED, NVFP4)):
        for t, axis, s in zip(jax_nvfp4.quantize_dual(x, spec, col_spec=col_spec), DUAL, (spec, col_spec), strict=True):
            for a, e in zip(arrays(t), arrays(oracle.quantize(np.asarray(x), s, axis=axis)), strict=True):
                assert_same_bytes(a, e, f"axis {axis} of {spec.scale_layout} rows")


def test_dual_of_1x16_blocks_is_two_quantizes():
    x = jnp.asarray(make("normal", (32, 64), "bfloat16"))
    row, column = jax_nvfp4.quantize_dual(x, NVFP4, col_amax=9.0, key=random_key())
    for t, axis, g in ((row, -1, None), (column, -2, 9.0)):
        expected = jax_nvfp4.quantize(x, axis=axis, amax=g, key=random_key())
        for a, e in zip(arrays(t), arrays(expected), strict=True):
            assert_same_bytes(a, e, f"axis {axis}")
