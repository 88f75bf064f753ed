"""MXFP8 through the operations: every value in every place of a block, cut-offs, the bytes of JAX's own quantize."""

import functools
import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jax_nvfp4
from jax_nvfp4 import MXFP8, QuantSpec, oracle
from jax_nvfp4.testing import FAMILIES, assert_same_bytes, make
from jax_nvfp4.testing.cases import MX_E5M2, MX_FLOOR, MX_SWIZZLED

BLOCK = MXFP8.facts.block
SPECS = {
    "rceil": MXFP8,
    "floor": MX_FLOOR,
    "e5m2": MX_E5M2,
    "e5m2_floor": QuantSpec("mxfp8_e5m2", scale_rounding="floor"),
}
SMALLEST_NORMAL_QUOTIENT = np.float32(448 * 2.0**-126)


def raw(array):
    return np.asarray(array).view(np.uint8)


@functools.partial(jax.jit, static_argnums=1)
def both(x, spec):
    """Codes and scales along each axis."""
    return tuple(a for t in jax_nvfp4.quantize_dual(x, spec) for a in (t.codes, t.scales))


def check_blocks(blocks, spec, codes, scales, what):
    """Blocks (N, 32) give the same bytes as rows and as columns."""
    row_codes, row_scales, *_ = both(jnp.asarray(blocks), spec)
    *_, col_codes, col_scales = both(jnp.asarray(np.ascontiguousarray(blocks.T)), spec)
    for side, c, s in (("rows", row_codes, row_scales), ("columns", col_codes, col_scales)):
        assert_same_bytes(raw(s)[:, 0], scales, f"scales of {side}, {what}")
        assert_same_bytes(raw(c), codes, f"codes of {side}, {what}")


def check_with_oracle(blocks, spec, what):
    q = oracle.quantize(blocks, spec)
    check_blocks(blocks, spec, raw(q.codes), raw(q.scales)[:, 0], what)


@pytest.mark.parametrize(
    "name, dtype",
    [
        ("rceil", "bfloat16"),
        ("floor", "bfloat16"),
        *(
            pytest.param(*mode, marks=pytest.mark.full)
            for mode in itertools.product(SPECS, ("bfloat16", "float16"))
            if mode not in (("rceil", "bfloat16"), ("floor", "bfloat16"))
        ),
    ],
)
def test_every_16_bit_value_in_every_lane(name, dtype):
    """Beside zeros of both signs. The oracle says what a value becomes in one lane; the others must agree."""
    spec, values = SPECS[name], np.arange(1 << 16, dtype=np.uint16).view(dtype)
    beside = np.zeros(BLOCK, dtype)
    beside[1::2] *= -1
    blocks = np.tile(beside, (values.size, 1))
    blocks[:, 0] = values
    q = oracle.quantize(blocks, spec)
    codes, scales = raw(q.codes)[:, 0].copy(), raw(q.scales)[:, 0]
    blocks[:, 0] = beside[0]
    expected = np.where((scales == 0xFF)[:, None], np.uint8(0x7F), raw(beside).reshape(BLOCK, 2)[:, 1])
    for lane in range(BLOCK):
        kept = expected[:, lane].copy()
        blocks[:, lane], expected[:, lane] = values, codes
        check_blocks(blocks, spec, expected, scales, f"lane {lane}")
        blocks[:, lane], expected[:, lane] = beside[lane], kept


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_cut_offs_and_their_neighbours(name, dtype):
    """The largest element near 1 and 1.75 times every power of two, where scale bytes change; 1.9375 saturates."""
    with np.errstate(over="ignore", invalid="ignore"):
        edges = np.ldexp(np.float32([[1.75], [1], [1.9375]]), np.arange(-149, 128)).astype(dtype).ravel()
        words = f"int{8 * edges.itemsize}"
        a = (edges.view(words)[:, None] + np.arange(-3, 4).astype(words)).view(dtype).ravel()
        blocks = np.random.default_rng(0).uniform(-1, 1, (a.size, BLOCK)).astype(dtype) * np.abs(a)[:, None]
    blocks[np.arange(a.size), np.arange(a.size) % BLOCK] = a
    blocks = np.concatenate([blocks, np.zeros((-a.size % BLOCK, BLOCK), dtype)])
    check_with_oracle(blocks, SPECS[name], dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, -np.nan])
def test_one_value_that_is_no_number_spoils_its_block_alone(value, dtype):
    blocks = make("normal", (4 * BLOCK, BLOCK), dtype)
    clean = oracle.quantize(blocks, MXFP8)
    codes, scales = raw(clean.codes).copy(), raw(clean.scales)[:, 0].copy()
    spoilt = np.arange(BLOCK)
    blocks[2 * spoilt, spoilt] = value
    codes[2 * spoilt], scales[2 * spoilt] = 0x7F, 0xFF
    check_blocks(blocks, MXFP8, codes, scales, value)


@pytest.mark.parametrize("fill", [0x00, 0xA5, 0xFF])
@pytest.mark.parametrize("spec", [MXFP8, MX_SWIZZLED], ids=["linear", "swizzled"])
def test_whatever_was_in_the_results(spec, fill):
    """Donated buffers become the results, so their bytes are there when the call starts; repeats are equal."""
    x = make("block_spread", (160, 96), "bfloat16")
    expected = [a for t in oracle.quantize_dual(x, spec) for a in (t.codes, t.scales)]

    def into(stale, x):
        del stale
        return both(x, spec)

    into = jax.jit(into, donate_argnums=0, keep_unused=True)
    for _ in range(3):
        stale = [jnp.asarray(np.full(e.shape, fill, np.uint8).view(e.dtype)) for e in expected]
        addresses = {a.unsafe_buffer_pointer() for a in stale}
        results = into(stale, jnp.asarray(x))
        assert addresses == {a.unsafe_buffer_pointer() for a in results}
        for got, wanted in zip(results, expected, strict=True):
            assert_same_bytes(got, wanted, f"over {fill:#x}")


# JAX's own quantize, of jax.nn.scaled_dot_general. docs/numerics.md lists where it differs.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in ("tiny", "nan_everywhere")])
def test_jax_quantizes_ordinary_blocks_to_the_same_bytes(family, dtype):
    from jax._src.cudnn.scaled_matmul_stablehlo import quantize

    x = make(family, (64, 256), dtype)
    config = jax.nn.get_scaled_dot_general_config("mxfp8")
    codes, scales = jax.jit(lambda x: quantize(x, config))(jnp.asarray(x))
    expected = oracle.quantize(x, MXFP8)
    a = np.abs(x.astype(np.float32)).reshape(64, -1, BLOCK).max(-1)
    ordinary = np.isfinite(a) & (a >= SMALLEST_NORMAL_QUOTIENT)
    assert ordinary.any() or family == "zeros"
    by_block = (*ordinary.shape, BLOCK)
    assert_same_bytes(raw(scales)[ordinary], raw(expected.scales)[ordinary], "scales")
    assert_same_bytes(raw(codes).reshape(by_block)[ordinary], raw(expected.codes).reshape(by_block)[ordinary], "codes")


def test_jax_quantizes_every_ordinary_bfloat16_to_the_same_bytes():
    from jax._src.cudnn.scaled_matmul_stablehlo import quantize

    words = np.arange(0x04E0, 0x7F80, dtype=np.uint16)
    blocks = np.zeros((words.size, BLOCK), ml_dtypes.bfloat16)
    blocks[:, 5] = words.view(ml_dtypes.bfloat16)
    codes, scales = jax.jit(lambda x: quantize(x, jax.nn.get_scaled_dot_general_config("mxfp8")))(jnp.asarray(blocks))
    expected = oracle.quantize(blocks, MXFP8)
    assert_same_bytes(raw(scales), raw(expected.scales), "scales")
    assert_same_bytes(raw(codes), raw(expected.codes), "codes")
