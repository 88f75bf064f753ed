"""What tests, doctor and benchmarks share: data that reaches every special case, byte comparison, the table of ops."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

import jax_nvfp4
from jax_nvfp4 import oracle
from jax_nvfp4.formats import E2M1_MAX, E4M3_MAX, FLOAT_DTYPES, NVFP4_FORMAT
from jax_nvfp4.spec import NVFP4, NVFP4_2D, QuantSpec

BLOCK = NVFP4_FORMAT.block
Family = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

E2M1_MIDPOINTS = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)
E4M3_POSITIVE = np.arange(1, 0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
ORDER_SENSITIVE_AMAX = np.array([7.875, 6.5, 6, 4.375], np.float32)
"""Values of G for which the order of the operations in section 2 step 4 changes scale bytes."""


def _signs(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.choice(np.array([-1, 1], np.float32), shape)


def _per_block(rng: np.random.Generator, shape: tuple[int, ...], choices: ArrayLike) -> np.ndarray:
    """One of `choices` for each run of 16 elements along the last axis."""
    picked = rng.choice(np.asarray(choices, np.float32), (*shape[:-1], -(-shape[-1] // BLOCK)))
    return np.repeat(picked, BLOCK, axis=-1)[..., : shape[-1]]


def _with_element(rng: np.random.Generator, x: np.ndarray, value: float) -> np.ndarray:
    """x with `value` in a random place of the first matrix."""
    if x.size:
        x[(0,) * (x.ndim - 2) + (rng.integers(x.shape[-2]), rng.integers(x.shape[-1]))] = value
    return x


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(-12, 12, shape).astype(np.float32)


def block_spread(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Blocks up to 30 binades apart, so that many underflow to a zero scale."""
    return normal(rng, shape) * _per_block(rng, shape, np.exp2(np.arange(-30, 1)))


def zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """+0 and -0."""
    return _signs(rng, shape) * np.float32(0)


def outlier(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return _with_element(rng, normal(rng, shape), -3e4)


def ties(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """E2M1 midpoints times a block scale, exactly, or one bfloat16 or float32 ulp beside; G = 6*448, so S = 1."""
    scale = _per_block(rng, shape, E4M3_POSITIVE)
    scale[..., :BLOCK] = E4M3_MAX
    x = rng.choice(E2M1_MIDPOINTS, shape) * scale
    ulps = rng.choice(np.array([0, 1, -1, 1 << 16, -(1 << 16)], np.int32), shape)
    x = (x.view(np.int32) + ulps).view(np.float32) * _signs(rng, shape)
    x[..., ::BLOCK] = E2M1_MAX * scale[..., ::BLOCK]
    return x


def order_sensitive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Block amaxes next to the midpoints of E4M3, for a G that depends on the row; row 0 has the largest."""
    g = ORDER_SENSITIVE_AMAX[np.arange(shape[-2]) % len(ORDER_SENSITIVE_AMAX)][:, None]
    midpoints = (E4M3_POSITIVE[:-1] + E4M3_POSITIVE[1:]) / 2
    b = g * _per_block(rng, shape, midpoints) / np.float32(E4M3_MAX)
    x = rng.uniform(-1, 1, shape).astype(np.float32) * b
    x[..., ::BLOCK] = b[..., ::BLOCK]
    x[..., :1] = g[: x.shape[-2]]
    return x


def dtype_max(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """The largest finite value of the dtype beside smaller ones."""
    scale = rng.choice(np.array([1, 0.5, 1e-3, 0], np.float32), shape)
    return _signs(rng, shape) * np.finfo(np.float32).max * scale


def tiny(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Subnormal and near-subnormal float32, G below 7.9e-36 so that S is clamped."""
    magnitude = np.ldexp(rng.uniform(1, 2, shape), rng.integers(-149, -118, shape))
    return _signs(rng, shape) * magnitude.astype(np.float32)


def float16_subnormal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (rng.integers(-1023, 1024, shape) * 2.0**-24).astype(np.float32)


def huge(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """G above 7.6e35, where dequantizing overflows."""
    return normal(rng, shape) * np.float32(2e37)


def nan_block(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return _with_element(rng, normal(rng, shape), np.nan)


def inf_block(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return _with_element(rng, normal(rng, shape), -np.inf)


def nan_everywhere(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """NaN of both signs and many payloads."""
    payload = rng.integers(1, 1 << 23, shape, np.uint32)
    return (payload | rng.choice(np.array([0x7F800000, 0xFF800000], np.uint32), shape)).view(np.float32)


FAMILIES: dict[str, Family] = {
    family.__name__: family
    for family in (
        normal,
        uniform,
        block_spread,
        zeros,
        outlier,
        ties,
        order_sensitive,
        dtype_max,
        tiny,
        float16_subnormal,
        huge,
        nan_block,
        inf_block,
        nan_everywhere,
    )
}
"""Name -> function(rng, shape) that returns float32."""


@np.errstate(invalid="ignore")
def make(family: str, shape: tuple[int, ...], dtype: DTypeLike, seed: int = 0) -> np.ndarray:
    """Data of one family.

    Args:
        family: a key of `FAMILIES`.
        shape: (..., M, K).
        dtype: bfloat16, float16 or float32.
        seed: seed of the generator.

    Returns:
        Array of `shape` and `dtype`; finite values beyond the dtype's range become its largest value.
    """
    x = FAMILIES[family](np.random.default_rng(seed), shape)
    limit = np.float32(ml_dtypes.finfo(dtype).max)
    return np.where(np.isfinite(x), np.clip(x, -limit, limit), x).astype(dtype)


def assert_same_bytes(actual: ArrayLike, expected: ArrayLike, what: str) -> None:
    """Asserts that two arrays agree in shape, dtype and every bit (so NaN equals NaN, and -0 is not 0).

    Raises:
        AssertionError: says how many elements differ, where the first one is, and both bit patterns.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype, f"{what}: dtype {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    word = np.dtype(f"u{actual.dtype.itemsize}")
    a, e = (np.ascontiguousarray(v).reshape(-1).view(word) for v in (actual, expected))
    different = np.flatnonzero(a != e)
    if different.size:
        first = different[0]
        index = tuple(int(i) for i in np.unravel_index(first, actual.shape))
        digits = 2 * word.itemsize
        raise AssertionError(
            f"{what}: {different.size} of {a.size} elements differ, first at {index}: "
            f"0x{a[first]:0{digits}x} ({actual[index]}), expected 0x{e[first]:0{digits}x} ({expected[index]})"
        )


@dataclass(frozen=True)
class Op:
    """A public operation in one of its modes, beside what the oracle says it returns.

    Attributes:
        name: unique, the function first.
        run: (..., M, K) JAX array -> all results, through the public functions.
        reference: the same of a NumPy array, through the oracle.
        multiples: what M and K must be multiples of.
        dtypes: names of the dtypes of x.
    """

    name: str
    run: Callable[[jax.Array], tuple[jax.Array, ...]]
    reference: Callable[[np.ndarray], tuple[np.ndarray, ...]]
    multiples: tuple[int, int] = (1, BLOCK)
    dtypes: tuple[str, ...] = FLOAT_DTYPES

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether an operand of `shape` holds whole blocks."""
        return all(size % multiple == 0 for size, multiple in zip(shape[-2:], self.multiples, strict=True))


def random_key() -> jax.Array:
    """The key of the stochastic ops of the table."""
    return jax.random.key(20)


def key_words(key: jax.Array) -> np.ndarray:
    """The Philox key words (2,) uint32 of a JAX random key, which the oracle takes (section 6)."""
    return np.asarray(jax.random.bits(key, (2,), np.uint32))


def arrays(t: jax_nvfp4.BlockScaled) -> tuple[jax.Array, ...]:
    """Codes, scales and amax of a quantized operand."""
    return t.codes, t.scales, t.amax


def _name(function: str, spec: QuantSpec, axis: int, *modes: str) -> str:
    rows, columns = spec.block
    direction = "rowwise" if axis == -1 else "columnwise"
    optional = (spec.scope == "row") * ("row_scope",) + (spec.scale_layout == "swizzled") * ("swizzled",)
    return "-".join((function, direction, f"{rows}x{columns}", *optional, *modes))


def _multiples(spec: QuantSpec, axis: int) -> tuple[int, int]:
    return spec.block if spec.is_tile or axis == -1 else (BLOCK, 1)


def _amax(scope) -> Op:
    return Op(
        f"amax-{scope}",
        lambda x: (jax_nvfp4.amax(x, scope=scope),),
        lambda x: (oracle.amax(x, scope=scope),),
        multiples=(1, 1),
    )


def _quantize(spec: QuantSpec, axis: int, stochastic: bool) -> Op:
    def run(x):
        return arrays(jax_nvfp4.quantize(x, spec, axis=axis, key=random_key() if stochastic else None))

    def reference(x):
        return tuple(oracle.quantize(x, spec, axis=axis, key=key_words(random_key()) if stochastic else None))

    return Op(_name("quantize", spec, axis, *stochastic * ("stochastic",)), run, reference, _multiples(spec, axis))


def _quantize_dual(spec: QuantSpec) -> Op:
    def run(x):
        row, column = jax_nvfp4.quantize_dual(x, spec)
        return *arrays(row), *arrays(column)

    def reference(x):
        row, column = oracle.quantize_dual(x, spec)
        return *row, *column

    return Op(f"quantize_dual-{spec.scale_layout}", run, reference, spec.block)


def _dequantize(spec: QuantSpec, axis: int, dtype: str) -> Op:
    def run(x):
        return (jax_nvfp4.dequantize(jax_nvfp4.quantize(x, spec, axis=axis), dtype),)

    def reference(x):
        y = oracle.dequantize(*oracle.quantize(x, spec, axis=axis), dtype, scale_layout=spec.scale_layout)
        return (y if axis == -1 else np.swapaxes(y, -1, -2),)

    return Op(_name("dequantize", spec, axis, dtype), run, reference, _multiples(spec, axis))


def _decode(axis: int) -> Op:
    def reference(x):
        codes, scales, _ = oracle.quantize(x, axis=axis)
        return (oracle.decode(codes, scales),)

    def run(x):
        return (jax_nvfp4.decode(jax_nvfp4.quantize(x, axis=axis)),)

    return Op(_name("decode", NVFP4, axis), run, reference, _multiples(NVFP4, axis))


def _qdq(spec: QuantSpec) -> Op:
    return Op(
        _name("qdq", spec, -1),
        lambda x: (jax_nvfp4.qdq(x, spec),),
        lambda x: (oracle.qdq(x, spec),),
        spec.block,
    )


_ROW_SCOPE = QuantSpec(scope="row")
_SWIZZLED, _SWIZZLED_2D, _SWIZZLED_ROW_SCOPE = (
    QuantSpec(block=s.block, scope=s.scope, scale_layout="swizzled") for s in (NVFP4, NVFP4_2D, _ROW_SCOPE)
)

OPS: tuple[Op, ...] = (
    _amax("tensor"),
    _amax("row"),
    *(_quantize(*mode) for mode in itertools.product((NVFP4, _SWIZZLED), (-1, -2), (False, True))),
    *(_quantize(*mode) for mode in itertools.product((_ROW_SCOPE, _SWIZZLED_ROW_SCOPE), (-1,), (False, True))),
    *(_quantize(*mode) for mode in itertools.product((NVFP4_2D, _SWIZZLED_2D), (-1, -2), (False,))),
    *map(_quantize_dual, (NVFP4_2D, _SWIZZLED_2D)),
    *(_dequantize(NVFP4, -1, dtype) for dtype in FLOAT_DTYPES),
    _dequantize(_ROW_SCOPE, -1, "float32"),
    _dequantize(_SWIZZLED, -1, "float32"),
    _dequantize(NVFP4, -2, "float32"),
    _decode(-1),
    _decode(-2),
    *map(_qdq, (NVFP4, NVFP4_2D, _ROW_SCOPE)),
)
"""Every operation in every mode."""
