"""Sections 2, 4 and 13: two-level scaling, 16x16 tiles, dequantize, and every consequence the contract names."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from jax_nvfp4.oracle import (
    Quantized,
    amax,
    decode,
    dequantize,
    e2m1,
    e4m3,
    intermediates,
    nvfp4,
    qdq,
    quantize,
    quantize_dual,
)
from jax_nvfp4.spec import NVFP4, NVFP4_2D, FourOverSix, QuantSpec
from jax_nvfp4.testing import FAMILIES, ORDER_SENSITIVE_AMAX, assert_same_bytes, make

DTYPES = ["bfloat16", "float16", "float32"]
ROW_SCOPE = QuantSpec(scope="row")
EMAX_SPECS = {448: NVFP4, 256: QuantSpec(four_over_six=FourOverSix(emax=256))}
FLT_MAX = np.finfo(np.float32).max
CANONICAL_NAN = {"bfloat16": 0x7FC0, "float16": 0x7E00, "float32": 0x7FC00000}


def f32(*bits):
    return np.array(bits, np.uint32).view(np.float32)


def bf16(text):
    return np.array([int(word, 16) for word in text.split()], np.uint16).view(ml_dtypes.bfloat16)


def bits(values):
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def scale_bytes(q):
    return q.scales.view(np.uint8)


def arrays(q):
    return q.codes, q.scales, q.amax


def codes(q):
    return e2m1.unpack(q.codes)


BLOCK = bf16("bf4d bf33 bf1a bf00 becd be9a be4d bdcd 0000 3dcd 3e4d 3e9a 3ecd 3f00 3f1a 3f33")[None]


# Section 13.


def test_known_answer_block_step_by_step():
    steps = intermediates(BLOCK, amax=2.5)
    assert bits(steps.S) == 0x44866666 and bits(steps.D) == 0x3A73CF3E
    assert steps.B == 0.80078125 and steps.p == 143.5 and steps.s.view(np.uint8) == 0x71
    assert bits(steps.e) == 0x40EEEEEE
    assert e2m1.pack(steps.codes).tobytes() == bytes.fromhex("ffee cd9b 1043 6576")
    assert bits(nvfp4.block_factor(steps.s, steps.G)) == 0x3E092492


@pytest.mark.parametrize("dtype", DTYPES)
def test_known_answer_block(dtype):
    q = quantize(BLOCK.astype(dtype), amax=2.5)
    assert q.codes.tobytes() == bytes.fromhex("ffee cd9b 1043 6576")
    assert scale_bytes(q).tolist() == [[0x71]]
    y = bf16("bf4e bf4e bf09 bf09 bece be89 be4e bd89 0000 3d89 3e4e 3e89 3ece 3f09 3f09 3f4e")[None]
    assert_same_bytes(dequantize(q), y, "dequantized")
    assert_same_bytes(qdq(BLOCK, amax=2.5), y, "qdq")


# Section 2, steps 1 to 6.


def test_constants():
    assert bits(nvfp4.ONE_SIXTH) == 0x3E2AAAAB
    one = np.array([[0x22] + [0] * 7], np.uint8), np.ones((1, 1), e4m3.DTYPE), np.float32(1)
    assert bits(dequantize(Quantized(*one, NVFP4, -1), "float32"))[0, 0] == 0x39C30C31
    assert bits(dequantize(Quantized(*one, EMAX_SPECS[256], -1), "float32"))[0, 0] == 0x3A2AAAAB


@pytest.mark.parametrize(
    "g, s", [(0.0, 1.0), (-0.0, 1.0), (np.inf, 1.0), (2688.0, 1.0), (6.0, 448.0), (1e-36, FLT_MAX), (1e-45, FLT_MAX)]
)
def test_global_scale(g, s):
    with np.errstate(divide="ignore", over="ignore"):
        assert nvfp4.global_scale(np.float32(g)) == s


def test_the_block_term_is_rounded_once():
    x = np.zeros((1, 32), ml_dtypes.bfloat16)
    x[0, 0], x[0, 16] = 7.875, bf16("3f99")[0]
    assert scale_bytes(quantize(x)).tolist() == [[0x7E, 0x69]]


@pytest.mark.parametrize("row, g", list(enumerate(ORDER_SENSITIVE_AMAX)))
def test_order_sensitive_data_separates_division_first(row, g):
    x = make("order_sensitive", (256, 256), "bfloat16")[row::4]
    b = nvfp4.block_amax(x.astype(np.float32), tile=False)
    q = quantize(x, ROW_SCOPE)
    assert (q.amax == g).all()
    division_first = e4m3.encode(b / np.float32(6) * nvfp4.global_scale(g)).view(np.uint8)
    assert np.mean(scale_bytes(q) != division_first) > 0.01


def test_element_scale_has_three_roundings():
    """fl(1/fl(s * fl(1/S))), each step in float64 and rounded; fl(S/s) is another number for many scales."""
    scales = np.arange(8, 0x7F, dtype=np.uint8).view(e4m3.DTYPE)
    differ = 0
    for g in (2.5, *ORDER_SENSITIVE_AMAX):
        s = nvfp4.global_scale(np.float32(g))
        d = np.float64(1 / s.astype(np.float64)).astype(np.float32)
        product = (scales.astype(np.float64) * d).astype(np.float32)
        e = (1 / product.astype(np.float64)).astype(np.float32)
        assert_same_bytes(nvfp4.element_scale(scales, nvfp4.inverse_scale(s)), e, f"G = {g}")
        differ += np.count_nonzero(e != s / scales.astype(np.float32))
    assert differ > 50


def test_elements_are_multiplied_by_the_reciprocal():
    """Dividing by the block scale 0.013671875 would give 1.5 here."""
    x = np.full((1, 16), 0.02392577938735485, np.float32)
    x[0, 0] = 6 * 0.013671875
    q = quantize(x, amax=2688.0)
    assert scale_bytes(q).tolist() == [[7]] and set(codes(q)[0, 1:]) == {4}


@pytest.mark.parametrize("p, byte", [(447, 0x7E), (464.1, 0x7E), (480, 0x7E), (1e4, 0x7E), (np.inf, 0x7E), (0.0009, 0)])
def test_block_scales_saturate_and_have_no_lower_clamp(p, byte):
    x = np.full((1, 16), p * 6, np.float32)
    assert scale_bytes(quantize(x, amax=2688.0)).tolist() == [[byte]]


def test_zero_tensor():
    x = make("zeros", (33, 48), "float32")
    q = quantize(x)
    assert q.amax == 0 and not scale_bytes(q).any()
    assert_same_bytes(codes(q), np.where(np.signbit(x), 8, 0).astype(np.uint8), "codes")
    assert_same_bytes(dequantize(q, "float32"), x, "dequantized")


def test_underflowed_block():
    x = np.zeros((1, 32), np.float32)
    x[0, 0], x[0, 16:] = 1, [1e-6, -1e-6, 1.4e-38, -1.4e-38, 1e-45, -0.0] + [0.0] * 10
    q = quantize(x)
    assert scale_bytes(q).tolist() == [[0x7E, 0]]
    # 1.4e-38 * FLT_MAX = 4.76, which rounds to code 6.
    assert codes(q)[0, 16:].tolist() == [7, 15, 6, 14, 0, 8] + [0] * 10
    y = dequantize(q, "float32")[0, 16:]
    assert not y.any() and np.signbit(y).tolist() == np.signbit(x[0, 16:]).tolist()


@pytest.mark.parametrize("spec", [NVFP4, NVFP4_2D])
@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("family", ["nan_block", "nan_everywhere"])
def test_nan_with_a_computed_amax_poisons_the_scope(family, axis, spec):
    q = quantize(make(family, (32, 48), "float32"), spec, axis=axis)
    assert bits(q.amax) == 0x7FC00000
    assert (scale_bytes(q) == 0x7F).all() and (codes(q) == 7).all()
    assert (bits(dequantize(q)) == 0x7FC0).all()


@pytest.mark.parametrize("nan", [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF], ids=hex)
@pytest.mark.parametrize(
    "spec, axis, block",
    [
        (NVFP4, -1, np.s_[20:21, 32:48]),
        (NVFP4, -2, np.s_[16:32, 40:41]),
        (NVFP4_2D, -1, np.s_[16:32, 32:48]),
        (NVFP4_2D, -2, np.s_[16:32, 32:48]),
    ],
)
def test_nan_with_a_given_amax_poisons_its_block_only(spec, axis, block, nan):
    x = make("normal", (48, 64), "float32")
    clean = quantize(x, spec, axis=axis, amax=4.0)
    x.view(np.uint32)[20, 40] = nan
    poisoned = np.zeros(x.shape, bool)
    poisoned[block] = True
    if axis == -2:
        poisoned = poisoned.T
    q = quantize(x, spec, axis=axis, amax=4.0)
    assert_same_bytes(codes(q), np.where(poisoned, np.uint8(7), codes(clean)), "codes")
    expected = np.where(poisoned[:, ::16], np.uint8(0x7F), scale_bytes(clean))
    assert_same_bytes(scale_bytes(q), expected, "scales")
    stored = poisoned if axis == -1 else poisoned.T
    assert_same_bytes(np.isnan(dequantize(q, "float32")), stored, "dequantized")


def test_inf():
    """G = Inf gives S = 1, so a block scale is E4M3(B/6) and a block below 2^-10 * 6 has s = 0."""
    x = np.zeros((1, 48), np.float32)
    x[0, :3] = [-np.inf, 1, 0]
    x[0, 16:19] = [6, -3, 0]
    x[0, 32] = 1e-4
    q = quantize(x)
    assert q.amax == np.inf and scale_bytes(q).tolist() == [[0x7E, 0x38, 0]]
    assert codes(q)[0, :3].tolist() == [15, 0, 0] and codes(q)[0, 16:19].tolist() == [7, 13, 0]
    y = dequantize(q, "float32")[0]
    assert y[0] == -np.inf and np.isnan(y[1:3]).all()
    assert y[16] == np.inf and y[17] == -np.inf and np.isnan(y[18]) and np.isnan(y[32:]).all()


@np.errstate(over="ignore")
def test_clamped_global_scale():
    """Below G = 7.9e-36 S is FLT_MAX and D subnormal; e is clamped too, so these elements become 0."""
    x = np.full((1, 32), 2.0**-130, np.float32)
    x[0, 16:] = 2.0**-135
    q = quantize(x)
    # p = fl(2^-130 * fl(FLT_MAX / 6)) is 1/24, and 1/32 of that in the second block.
    assert_same_bytes(q.scales, np.array([[1 / 24, 1 / 768]], e4m3.DTYPE), "scales")
    assert (bits(nvfp4.element_scale(q.scales, nvfp4.inverse_scale(np.float32(FLT_MAX)))) == 0x7F7FFFFF).all()
    assert not codes(q).any()
    # p = 2^10/6 rounds to s = 176, and x*e = 2^10/176 = 5.8.
    q = quantize(np.full((1, 16), 2.0**-118, np.float32), amax=1e-36)
    assert scale_bytes(q).tolist() == [[0x73]] and (codes(q) == 7).all()


# amax.


@pytest.mark.parametrize("dtype", DTYPES)
def test_amax_scopes(dtype):
    x = make("normal", (2, 3, 5, 16), dtype)
    wide = np.abs(x.astype(np.float32))
    assert_same_bytes(amax(x), wide.max((-2, -1)), "tensor")
    assert_same_bytes(amax(x, scope="row"), wide.max(-1), "row")


def test_amax_special_values():
    x = np.zeros((5, 16), np.float32)
    x[0], x[1, 3], x[3, 5] = -0.0, -np.inf, 1e-45
    x.view(np.uint32)[2, 4] = 0xFF812345
    assert bits(amax(x, scope="row")).tolist() == [0, 0x7F800000, 0x7FC00000, 1, 0]
    assert bits(amax(x)) == 0x7FC00000


@pytest.mark.parametrize("shape", [(1, 1), (1, 16), (7, 33), (128, 128)])
def test_amax_of_any_nan_is_canonical(shape):
    x = make("nan_everywhere", shape, "float32")
    assert bits(amax(x)) == 0x7FC00000 and (bits(amax(x, scope="row")) == 0x7FC00000).all()


def test_empty_operands():
    assert_same_bytes(amax(np.zeros((2, 0, 16), np.float32)), np.zeros(2, np.float32), "no rows")
    assert_same_bytes(amax(np.zeros((3, 0), np.float32), scope="row"), np.zeros(3, np.float32), "no columns")
    q = quantize(np.zeros((0, 32), np.float32))
    assert q.codes.shape == (0, 16) and q.scales.shape == (0, 2) and dequantize(q).shape == (0, 32)
    q = quantize(np.zeros((0, 32), np.float32), QuantSpec(scale_layout="swizzled"), axis=-2)
    assert q.codes.shape == (32, 0) and q.scales.shape == (128, 0)


# What the operations share.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_batch_and_row_scope_and_columns_are_separate_problems(family, dtype):
    x = make(family, (2, 3, 32, 48), dtype)
    batched, columns = quantize(x), quantize(x, axis=-2)
    by_row = quantize(x, ROW_SCOPE)
    for i in np.ndindex(2, 3):
        for part, whole in zip(arrays(quantize(x[i])), arrays(batched), strict=True):
            assert_same_bytes(part, whole[i], f"batch element {i}")
        for part, whole in zip(arrays(quantize(np.ascontiguousarray(x[i].T))), arrays(columns), strict=True):
            assert_same_bytes(part, whole[i], f"transpose of batch element {i}")
    for part, whole in zip(arrays(quantize(x.reshape(-1, 1, 48))), arrays(by_row), strict=True):
        assert_same_bytes(part.reshape(whole.shape), whole, "each row as a tensor")


@pytest.mark.parametrize("family", FAMILIES)
def test_dual_without_tiles_is_two_quantizes(family):
    x = make(family, (2, 32, 48), "bfloat16")
    swizzled = QuantSpec(scale_layout="swizzled")
    for row, column in (quantize_dual(x, key=(1, 2)), quantize_dual(x, ROW_SCOPE, col_spec=swizzled, key=(1, 2))):
        for q, axis in ((row, -1), (column, -2)):
            assert q.axis == axis and q.shape == x.shape
            for part, expected in zip(arrays(q), arrays(quantize(x, q.spec, axis=axis, key=(1, 2))), strict=True):
                assert_same_bytes(part, expected, f"{q.spec} {axis}")
    given = quantize_dual(x, amax=np.float32([3, 4]), col_amax=5.0)
    assert given[0].amax.tolist() == [3, 4] and given[1].amax.tolist() == [5, 5]
    assert quantize_dual(x, amax=3.0)[1].amax.tolist() == [3, 3]


def test_dequantize_gives_the_operand_and_transposing_renames_the_axis():
    x = make("normal", (2, 32, 48), "float32")
    q = quantize(x, axis=-2)
    assert dequantize(q).shape == x.shape and q.T.axis == -1
    assert_same_bytes(dequantize(q.T), np.swapaxes(dequantize(q), -1, -2), "transposed")
    assert_same_bytes(dequantize(q), np.swapaxes(dequantize(quantize(np.swapaxes(x, -1, -2))), -1, -2), "values")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_qdq_keeps_dtype_and_canonical_nan(family, dtype):
    x = make(family, (2, 32, 48), dtype)
    for spec in (NVFP4, NVFP4_2D, ROW_SCOPE, QuantSpec(scale_layout="swizzled")):
        q = quantize(x, spec)
        y = qdq(x, spec)
        assert_same_bytes(y, dequantize(q, dtype), f"{spec}")
        assert set(bits(y)[np.isnan(y.astype(np.float32))]) <= {CANONICAL_NAN[dtype]}


# Section 2.7 and 2.8.


def every_code_and_scale():
    """16 codes for each of the 256 scales, as 256 rows of one block."""
    packed = e2m1.pack(np.tile(np.arange(16, dtype=np.uint8), (256, 1)))
    return packed, np.arange(256, dtype=np.uint8).view(e4m3.DTYPE)[:, None]


def products():
    """code * scale of `every_code_and_scale` in float64, exact."""
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float64)
    return np.concatenate([values, -values]) * every_code_and_scale()[1].astype(np.float64)


@pytest.mark.parametrize("emax", [448, 256])
@pytest.mark.parametrize("g", [2.5, 7.875, 1e-30, 1.0, 7e35])
def test_dequantize_every_code_and_scale(g, emax):
    packed, scales = every_code_and_scale()
    g = np.float32(g)
    # float64 holds a product of two float32 exactly, so each astype is the one rounding of that operation.
    factor = (scales.astype(np.float64) * g).astype(np.float32)
    factor = (factor.astype(np.float64) * np.float64(np.float32(1 / (6 * emax)))).astype(np.float32)
    values = np.concatenate([e2m1.MAGNITUDES, -e2m1.MAGNITUDES]).astype(np.float64)
    expected = (values * factor.astype(np.float64)).astype(np.float32)
    actual = dequantize(Quantized(packed, scales, g, EMAX_SPECS[emax], -1), "float32")
    nan = np.isnan(expected)
    assert_same_bytes(np.where(nan, 0, bits(actual)), np.where(nan, 0, bits(expected)), "float32")
    assert (bits(actual)[nan] == 0x7FC00000).all() and nan.sum() == 32
    for dtype in ("bfloat16", "float16"):
        narrow = dequantize(Quantized(packed, scales, g, EMAX_SPECS[emax], -1), dtype)
        with np.errstate(over="ignore"):
            rounded = np.where(nan, np.float32(0), expected).astype(dtype)
        assert_same_bytes(narrow[~nan], rounded[~nan], dtype)
        assert (bits(narrow)[nan] == CANONICAL_NAN[dtype]).all()


def test_dequantize_rounds_to_nearest_even_and_overflows_to_inf():
    packed, scales = every_code_and_scale()
    y = dequantize(Quantized(packed, scales, np.float32(2688 * 150), NVFP4, -1), "float16")
    assert y[0x7E, 7] == np.inf and y[0x7E, 15] == -np.inf and y[0x38, 7] == 900
    # One bfloat16 unit at 257 is 2: 257 is a tie and goes to the even 256.
    tie = dequantize(Quantized(packed, scales, np.float32(2688 * 257), NVFP4, -1), "bfloat16")
    assert tie[0x38, 2] == 256


def test_row_amax():
    packed, scales = every_code_and_scale()
    rows = np.linspace(1, 4, 256, dtype=np.float32)
    by_row = dequantize(Quantized(packed, scales, rows, ROW_SCOPE, -1), "float32")
    for row in (0, 77, 255):
        one = Quantized(packed[row : row + 1], scales[row : row + 1], rows[row], NVFP4, -1)
        assert_same_bytes(by_row[row : row + 1], dequantize(one, "float32"), f"row {row}")


def test_decode_is_the_exact_product():
    actual, exact = decode(Quantized(*every_code_and_scale(), np.float32(1), NVFP4, -1)), products()
    nan = np.isnan(exact)
    assert actual.dtype == ml_dtypes.bfloat16
    assert (actual.astype(np.float64)[~nan] == exact[~nan]).all()
    assert (np.signbit(actual)[~nan] == np.signbit(exact)[~nan]).all()
    assert (bits(actual)[nan] == 0x7FC0).all() and nan.sum() == 32


def test_decode_and_alpha_give_the_product_of_the_dequantized_matrices():
    a, b = (quantize(make("normal", (32, 64), "float32", seed)) for seed in (1, 2))
    alpha = [q.amax * (np.float32(1) / np.float32(2688)) for q in (a, b)]
    decoded = decode(a).astype(np.float64) @ decode(b).astype(np.float64).T
    dequantized = [dequantize(q, "float32").astype(np.float64) for q in (a, b)]
    np.testing.assert_allclose(alpha[0] * alpha[1] * decoded, dequantized[0] @ dequantized[1].T, rtol=0, atol=1e-5)


@pytest.mark.parametrize("spec, floor", [(NVFP4, 20), (NVFP4_2D, 18)])
def test_reconstruction(spec, floor):
    x = make("normal", (256, 256), "float32").astype(np.float64)
    error = qdq(x.astype(np.float32), spec) - x
    assert 10 * np.log10((x**2).sum() / (error**2).sum()) > floor


# Section 4.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_tiles_share_codes_and_scales_between_directions(family, dtype):
    x = make(family, (2, 48, 80), dtype)
    row, column = quantize_dual(x, NVFP4_2D)
    assert_same_bytes(codes(row), np.swapaxes(codes(column), -1, -2), "codes")
    tiles = scale_bytes(row)[:, ::16]
    assert_same_bytes(scale_bytes(row), np.repeat(tiles, 16, axis=-2), "row scales")
    assert_same_bytes(scale_bytes(column), np.repeat(np.swapaxes(tiles, -1, -2), 16, axis=-2), "column scales")
    assert_same_bytes(column.amax, row.amax, "amax")


def test_a_tile_is_scaled_by_its_own_amax():
    x = make("normal", (32, 32), "float32")
    x[17, 3] = 100
    q = quantize(x, NVFP4_2D)
    for i, j in np.ndindex(2, 2):
        tile = x[16 * i : 16 * i + 16, 16 * j : 16 * j + 16]
        one_row = quantize(np.full((1, 16), np.abs(tile).max()), amax=q.amax)
        assert (scale_bytes(q)[16 * i : 16 * i + 16, j] == scale_bytes(one_row)).all()
    assert scale_bytes(q)[16, 0] == 0x7E


# Refused input.


@pytest.mark.parametrize(
    "shape, spec, axis, message",
    [
        ((4, 17), NVFP4, -1, r"axis -1 of x must be a multiple of 16 for \(1, 16\) blocks, got 17"),
        ((17, 16), NVFP4, -2, r"axis -2 of x must be a multiple of 16 for \(1, 16\) blocks, got 17"),
        ((8, 16), NVFP4_2D, -1, r"axis -2 of x must be a multiple of 16 for \(16, 16\) blocks, got 8"),
        ((16, 16), NVFP4, 0, "axis must be -1 or -2, got 0"),
        ((16, 16), ROW_SCOPE, -2, "scope 'row' needs axis=-1"),
        ((16,), NVFP4, -1, r"x must be \(\.\.\., M, K\), got shape \(16,\)"),
    ],
)
def test_wrong_shapes_are_refused(shape, spec, axis, message):
    with pytest.raises(ValueError, match=message):
        quantize(np.zeros(shape, np.float32), spec, axis=axis)


def test_other_wrong_operands_are_refused():
    x = np.zeros((2, 16, 16), np.float32)
    with pytest.raises(TypeError, match="got float64: convert first"):
        quantize(x.astype(np.float64))
    with pytest.raises(TypeError, match="amax must be float32, got float64"):
        quantize(x, amax=np.zeros(2))
    with pytest.raises(ValueError, match=r"amax must have shape \(2,\) or be one for all, got \(3,\)"):
        quantize(x, amax=np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="scope must be one of"):
        amax(x, scope="column")
    with pytest.raises(ValueError, match="needs group sizes"):
        quantize(x, QuantSpec(scope="group"))
    q = quantize(x)
    with pytest.raises(ValueError, match=r"need linear scales \(2, 16, 1\), got \(2, 16, 0\)"):
        dequantize(replace(q, scales=q.scales[..., :0]))
    with pytest.raises(TypeError, match="codes must be uint8"):
        decode(replace(q, codes=q.codes.astype(np.int32)))
    with pytest.raises(ValueError, match="C a multiple of 16"):
        decode(replace(q, codes=q.codes[..., :3]))
    with pytest.raises(ValueError, match=r"amax must have shape \(2,\), got \(3,\)"):
        dequantize(replace(q, amax=np.zeros(3, np.float32)))
    with pytest.raises(TypeError, match="amax must be float32"):
        dequantize(replace(q, amax=np.zeros(2)))
    with pytest.raises(TypeError, match="dtype must be one of"):
        dequantize(q, dtype="float64")
