"""The one table of cases: every public operation in every mode, beside what the oracle says it returns.

Tests, sharding tests, GPU tests, doctor and both benches run over `CASES`. What a test needs to know about a case it
asks the case: names are for people to read, and nothing is ever looked up in one. To add a mode, give `QuantSpec` its
new field and `CASES` its rows; to add an operation, a branch in `call` and in `reference` as well.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, fields, replace

import jax
import jax.numpy as jnp
import numpy as np

import jax_nvfp4
from jax_nvfp4 import oracle
from jax_nvfp4.formats import FLOAT_DTYPES, SWIZZLE_ROWS
from jax_nvfp4.mode import VERBS, Mode, blocks
from jax_nvfp4.spec import MXFP8, NVFP4, NVFP4_2D, RHT, FourOverSix, QuantSpec

Arrays = tuple[jax.Array, ...]


def random_key() -> jax.Array:
    """The key of the stochastic cases."""
    return jax.random.key(20)


def key_words(key: jax.Array) -> np.ndarray:
    """The Philox key words (2,) uint32 of a JAX random key, which the oracle takes (section 6)."""
    return np.asarray(jax.random.bits(key, (2,), np.uint32))


def arrays(t) -> tuple:
    """Codes, scales and amax of a quantized operand, of the operations or of the oracle; no amax where it has none."""
    return tuple(a for a in (t.codes, t.scales, t.amax) if a is not None)


@dataclass(frozen=True)
class Case:
    """One public operation in one mode.

    Attributes:
        verb: the custom call, a key of `mode.VERBS`.
        spec: how the operand is, or was, quantized. For `amax` only its scope matters.
        axes: the axes along which the blocks of its outputs, or of the quantized operand, run; both for a dual
            quantization.
        is_stochastic: whether it gets a key.
        dtype: of the result, where that is not the dtype of x.
        dtypes: that x can have.
    """

    verb: str
    spec: QuantSpec = NVFP4
    axes: tuple[int, ...] = (-1,)
    is_stochastic: bool = False
    dtype: str = ""
    dtypes: tuple[str, ...] = FLOAT_DTYPES

    @property
    def name(self) -> str:
        """Unique in the table: what differs from the default spec is said."""
        words = [self.verb]
        if self.mode.directions:
            words += ["dual" if self.is_dual else "row" if self.axes == (-1,) else "col"]
            words += ["x".join(map(str, self.spec.block))]
        words += [
            _word(f.name, getattr(self.spec, f.name))
            for f in fields(QuantSpec)
            if f.name != "block"
            if getattr(self.spec, f.name) != f.default
        ]
        return "-".join([*words, *self.is_stochastic * ["stochastic"], *[self.dtype] * bool(self.dtype)])

    def spec_of(self, axis: int) -> QuantSpec:
        """The spec of one output: only a columnwise one has the Hadamard transform."""
        return self.spec if axis == -2 else replace(self.spec, rht=None, math="exact")

    @property
    def mode(self) -> Mode:
        """How x is, or was, quantized."""
        row, col = (
            self.spec_of(axis).direction(self.is_stochastic) if axis in self.axes else None for axis in (-1, -2)
        )
        if self.verb == "amax" and self.spec.rht is None:
            row = col = None
        return replace(self.spec.scaling, row=row, col=col)

    def group_sizes(self, x) -> np.ndarray | None:
        """Sizes of groups of the rows of x (..., M, K), some empty and some rows left; None without groups."""
        if self.spec.scope != "group":
            return None
        multiple = 1 if -2 not in self.axes else SWIZZLE_ROWS if self.is_swizzled else self.spec.facts.block
        units = x.shape[-2] // multiple
        sizes = np.array([units // 4, 0, units // 3, units // 8, 0], np.int32) * multiple
        return np.broadcast_to(sizes, (*x.shape[:-2], sizes.size))

    @property
    def is_dual(self) -> bool:
        """Whether it has two outputs."""
        return len(self.axes) > 1

    @property
    def is_swizzled(self) -> bool:
        """Whether its scales are laid out in tiles."""
        return any(d.swizzled for d in self.mode.directions)

    @property
    def reads_codes(self) -> bool:
        """Whether its operand is quantized, rather than its result."""
        return VERBS[self.verb](self.mode)[0][0].name != "x"

    @property
    def multiples(self) -> tuple[int, int]:
        """What M and K must be multiples of."""
        row, col = (d and replace(d, swizzled=False) for d in (self.mode.row, self.mode.col))
        together = blocks(replace(self.mode, row=row, col=col))
        return together["m"], together["k"]

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether an operand of `shape` holds whole blocks."""
        return all(size % multiple == 0 for size, multiple in zip(shape[-2:], self.multiples, strict=True))

    def cut(self, shape: tuple[int, ...], shards: tuple[int, int]) -> int | None:
        """The first block that M or K of `shape`, split into so many shards, would cut; None if every shard is whole.

        A dimension that cannot be split at all is one block.
        """
        together = blocks(self.mode)
        for name, size, count in zip("mk", shape[-2:], shards, strict=True):
            block = together.get(name, size)
            if count > 1 and size % (block * count):
                return block
        return None

    def holds_whole_blocks(self, shape: tuple[int, ...], shards: tuple[int, int] = (1, 1)) -> bool:
        """Whether an operand of `shape` whose M and K are split into so many shards can be computed shard by shard."""
        return self.fits(shape) and self.cut(shape, shards) is None

    def bytes_moved(self, shape: tuple[int, ...], dtype: str) -> int:
        """Bytes of the large operands and results of the custom call for x, or y, of `shape`, each counted once."""
        *batch, rows, columns = shape
        facts, mode = self.spec.facts, self.mode
        arrays = {"x": ((rows, columns), dtype), "y": ((rows, columns), self.dtype or dtype)}
        for side, size in (("row", (rows, columns)), ("col", (columns, rows))):
            if direction := getattr(mode, side):
                arrays[f"{side}_codes"] = facts.codes_shape(*size), facts.code_dtype
                arrays[f"{side}_scales"] = facts.scale_shape(*size, direction.layout), facts.scale_dtype
        operands, results = VERBS[self.verb](mode)
        large = [arrays[role.name] for role in (*operands, *results) if role.name in arrays]
        return math.prod(batch) * sum(math.prod(size) * jnp.dtype(name).itemsize for size, name in large)

    def operands(self, x, amax=None) -> Arrays:
        """What `call` takes for x: x and its amax if one is given, or x quantized."""
        if self.reads_codes:
            return arrays(jax_nvfp4.quantize(x, self.spec, axis=self.axes[0], amax=amax))
        return (x,) if amax is None or self.verb == "amax" else (x, amax)

    def call(self, *operands) -> Arrays:
        """The operation alone, through the public functions: what the custom call writes."""
        if self.verb == "quantize":
            return tuple(a for t in self._quantized(jax_nvfp4, *operands) for a in (t.codes, t.scales))
        if self.reads_codes:
            codes, scales, *amax = operands
            t = jax_nvfp4.BlockScaled(codes, scales, amax[0] if amax else None, self.spec, self.axes[0])
            return (jax_nvfp4.decode(t) if self.verb == "decode" else jax_nvfp4.dequantize(t, self.dtype),)
        if self.verb == "amax":
            return self._amaxes(jax_nvfp4, *operands)
        x, *given = operands
        return (jax_nvfp4.qdq(x, self.spec, amax=given[0] if given else None),)

    def run(self, x) -> Arrays:
        """Everything a user gets for x (..., M, K), amaxes included."""
        if self.verb == "quantize":
            return tuple(a for t in self._quantized(jax_nvfp4, x) for a in arrays(t))
        return self.call(*self.operands(x))

    def reference(self, x: np.ndarray, amax=None) -> tuple[np.ndarray, ...]:
        """What `run` must return, through the oracle."""
        spec, words = self.spec, key_words(random_key()) if self.is_stochastic else None
        if self.verb == "amax":
            return self._amaxes(oracle, x)
        if self.verb == "qdq":
            return (oracle.qdq(x, spec, amax=amax),)
        quantized = self._quantized(oracle, x, amax, words)
        if self.verb == "quantize":
            return tuple(a for t in quantized for a in arrays(t))
        return self.read_reference(*arrays(quantized[0]))

    def read_reference(self, *operands: np.ndarray) -> tuple[np.ndarray, ...]:
        """What `call` must return for codes, scales and amax, through the oracle."""
        codes, scales, *amax = operands
        t = oracle.Quantized(codes, scales, amax[0] if amax else None, self.spec, self.axes[0])
        return (oracle.decode(t) if self.verb == "decode" else oracle.dequantize(t, self.dtype),)

    def _quantized(self, where, x, amax=None, key=None) -> tuple:
        """What the functions of a module, jax_nvfp4 or its oracle, return for x."""
        if self.is_stochastic and where is jax_nvfp4:
            key = random_key()
        options = {"amax": amax, "key": key}
        sizes = self.group_sizes(x)
        groups, prefix = ((), "") if sizes is None else ((sizes,), "grouped_")
        if not self.is_dual:
            axis = self.axes[0]
            return (getattr(where, f"{prefix}quantize")(x, *groups, self.spec_of(axis), axis=axis, **options),)
        dual = getattr(where, f"{prefix}quantize_dual")
        return dual(x, *groups, self.spec_of(-1), col_spec=self.spec_of(-2), **options)

    def _amaxes(self, where, x) -> tuple:
        sizes = self.group_sizes(x)
        options = {"rht": self.spec.rht, "dual": self.is_dual}
        found = (
            where.amax(x, scope=self.spec.scope, **options)
            if sizes is None
            else where.grouped_amax(x, sizes, **options)
        )
        return tuple(found) if self.is_dual else (found,)


def _word(field: str, value) -> str:
    """How a name says one field of a spec."""
    if isinstance(value, RHT):
        return field if value == RHT() else f"{field}_{value.sign_mask:04x}"
    if isinstance(value, FourOverSix):
        return f"4o6_{value.error}_{value.arithmetic}_{value.order}_{value.emax}"
    return f"{value}_scope" if field == "scope" else str(value)


def _is_defined(spec: QuantSpec, axes: tuple[int, ...], is_stochastic: bool) -> bool:
    """Whether docs/numerics.md defines it: rows have no amax of their own along -2, tiles no stochastic rounding."""
    return not (spec.scope == "row" and -2 in axes) and not (spec.is_tile and is_stochastic)


ROW, COL, DUAL = (-1,), (-2,), (-1, -2)
ROW_SCOPE = replace(NVFP4, scope="row")
SPECS = tuple(
    replace(spec, scale_layout=layout) for spec in (NVFP4, ROW_SCOPE, NVFP4_2D) for layout in ("linear", "swizzled")
)
SWIZZLED, SWIZZLED_2D = (replace(spec, scale_layout="swizzled") for spec in (NVFP4, NVFP4_2D))
HADAMARD = replace(NVFP4, rht=RHT())
HADAMARD_SWIZZLED = replace(HADAMARD, scale_layout="swizzled")
FAST = replace(HADAMARD, math="fast")
GROUPS, HADAMARD_GROUPS, MX_GROUPS = (replace(spec, scope="group") for spec in (NVFP4, HADAMARD, MXFP8))
SEARCHES = (
    FourOverSix(),
    FourOverSix(error="mse", arithmetic="fp16", order="tree", emax=448),
    FourOverSix(error="abs_max"),
)
SEARCHED = tuple(replace(NVFP4, four_over_six=search) for search in SEARCHES)
SEARCHED_2D, SEARCHED_ROW_SCOPE = (replace(spec, four_over_six=SEARCHES[0]) for spec in (NVFP4_2D, ROW_SCOPE))
MX_FLOOR, MX_SWIZZLED = replace(MXFP8, scale_rounding="floor"), replace(MXFP8, scale_layout="swizzled")
MX_E5M2 = QuantSpec("mxfp8_e5m2")

CASES: tuple[Case, ...] = (
    *(Case("amax", spec) for spec in (NVFP4, ROW_SCOPE, GROUPS)),
    *(Case("amax", HADAMARD, axes) for axes in (COL, DUAL)),
    Case("amax", HADAMARD_GROUPS, DUAL),
    *(
        Case("quantize", *mode)
        for mode in itertools.product(SPECS, (ROW, COL, DUAL), (False, True))
        if _is_defined(*mode)
    ),
    *(Case("quantize", HADAMARD, *mode) for mode in itertools.product((COL, DUAL), (False, True))),
    *(Case("quantize", spec, DUAL, True) for spec in (HADAMARD_SWIZZLED, FAST)),
    Case("quantize", replace(HADAMARD, rht=RHT(0x2C95)), DUAL),
    *(Case("quantize", spec, axes) for spec in SEARCHED for axes in (ROW, COL)),
    *(Case("quantize", replace(NVFP4_2D, four_over_six=search), DUAL) for search in SEARCHES),
    Case("quantize", SEARCHED_ROW_SCOPE, ROW),
    *(Case("quantize", MXFP8, axes) for axes in (ROW, COL)),
    *(Case("quantize", spec, DUAL) for spec in (MX_SWIZZLED, MX_FLOOR, MX_E5M2)),
    *(Case("quantize", GROUPS, *mode) for mode in ((ROW, True), (COL, False))),
    Case("quantize", HADAMARD_GROUPS, DUAL, True),
    Case("quantize", MX_GROUPS, DUAL),
    *(Case("dequantize", NVFP4, ROW, dtype=dtype) for dtype in FLOAT_DTYPES),
    *(Case("dequantize", spec, ROW, dtype="float32") for spec in (ROW_SCOPE, SWIZZLED, SEARCHED[0], MXFP8, MX_E5M2)),
    *(Case("dequantize", spec, COL, dtype="float32") for spec in (NVFP4, MXFP8)),
    *(Case("decode", NVFP4, axes, dtype="bfloat16") for axes in (ROW, COL)),
    Case("decode", MXFP8, ROW, dtype="bfloat16"),
    *(Case("qdq", spec) for spec in (NVFP4, NVFP4_2D, ROW_SCOPE, *SEARCHED, SEARCHED_2D, MXFP8, MX_FLOOR)),
)
"""Every operation in every mode."""
