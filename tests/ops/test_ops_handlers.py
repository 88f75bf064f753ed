"""A custom call that no public function makes is an error that says what it expected, not a crash or a wrong number.

The calls here go around every check in Python: a mode, operands and results straight to the handler, as an exported
program of another version would.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_nvfp4.formats import FORMATS
from jax_nvfp4.mode import VERBS, Direction, Math, Mode, Scope, Search, SearchError, result

F32, BF16, U8, F8, U32 = jnp.float32, jnp.bfloat16, jnp.uint8, jnp.float8_e4m3fn, jnp.uint32
PLAIN, TILE, STOCHASTIC, SWIZZLED = (
    Direction(),
    Direction(tile=True),
    Direction(stochastic=True),
    Direction(swizzled=True),
)
ROW, COL, BOTH = Mode(row=PLAIN), Mode(col=PLAIN), Mode(row=PLAIN, col=PLAIN)
HADAMARD = Mode(col=Direction(rht=0xD7E8))
TILES, ANY = Mode(row=TILE, col=TILE), Mode()
MEMBERS = len(ANY.attribute())


def s(shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


X, G, Y = s((32, 64)), s(()), s((32, 64), BF16)
CODES, SCALES = s((32, 32), U8), s((32, 4), F8)
COL_CODES, COL_SCALES = s((64, 16), U8), s((64, 2), F8)
SEED, ORIGIN = s((2,), U32), s((3,), U32)


def call(verb, mode, operands, results):
    """Run one custom call on zeros; `mode` is a `Mode`, or an attribute ready made."""
    attribute = mode.attribute() if isinstance(mode, Mode) else mode
    run = jax.jit(lambda *arrays: jax.ffi.ffi_call(f"nvfp4_{verb}", results)(*arrays, mode=attribute))
    return jax.block_until_ready(run(*(jnp.zeros(o.shape, o.dtype) for o in operands)))


def told(mode, **members):
    """The attribute of `mode`, with some members changed or, where None, left out."""
    return {name: value for name, value in (mode.attribute() | members).items() if value is not None}


WIDE = s((32, 40)), s((32, 20), U8), s((32, 2), F8)  # of x whose columns are two and a half blocks
TALL = s((33, 64)), s((64, 16), U8), s((64, 2), F8)  # of x whose rows are two blocks and one row

IMPOSSIBLE = {
    # Shapes and dtypes.
    "amax: rank": ("amax", ANY, [s((64,))], [G], "x must have at least 2 dimensions, got (64,)"),
    "amax: dtype": ("amax", ANY, [s((32, 64), U8)], [G], "x must be BF16, F16 or F32, got U8"),
    "amax: result": ("amax", ANY, [X], [s((32,))], "amax must be F32 of shape (), got F32 of shape (32,)"),
    "amax: row result": (
        "amax",
        Mode(scope=Scope.ROW),
        [X],
        [G],
        "amax must be F32 of shape (32,), got F32 of shape ()",
    ),
    "amax: result dtype": ("amax", ANY, [X], [s((), BF16)], "amax must be F32 of shape (), got BF16"),
    "amax: batch": ("amax", ANY, [s((3, 32, 64))], [G], "amax must be F32 of shape (3,), got F32 of shape ()"),
    "quantize: columns": (
        "quantize",
        ROW,
        [WIDE[0], G],
        WIDE[1:],
        "columns of x must be a multiple of 16, got 40: pad x to whole blocks",
    ),
    "quantize: rows": (
        "quantize",
        COL,
        [TALL[0], G],
        TALL[1:],
        "rows of x must be a multiple of 16, got 33: pad x to whole blocks",
    ),
    "quantize: tile rows": ("quantize", Mode(row=TILE), [s((33, 64)), G], [s((33, 32), U8), s((33, 4), F8)], "got 33"),
    "quantize: tile columns": (
        "quantize",
        Mode(col=TILE),
        [s((32, 40)), G],
        [s((40, 16), U8), s((40, 2), F8)],
        "columns of x must be a multiple of 16, got 40",
    ),
    "quantize: dtype": ("quantize", ROW, [s((32, 64), jnp.int32), G], [CODES, SCALES], "BF16, F16 or F32, got S32"),
    "quantize: amax dtype": (
        "quantize",
        ROW,
        [X, s((), BF16)],
        [CODES, SCALES],
        "amax must be F32 of shape (), got BF16",
    ),
    "quantize: amax shape": ("quantize", ROW, [X, s((32,))], [CODES, SCALES], "shape (), got F32 of shape (32,)"),
    "quantize: amax per row": (
        "quantize",
        Mode(scope=Scope.ROW, row=PLAIN),
        [X, G],
        [CODES, SCALES],
        "shape (32,), got F32 of shape ()",
    ),
    "quantize: codes": (
        "quantize",
        ROW,
        [X, G],
        [s((32, 16), U8), SCALES],
        "row codes must be U8 of shape (32, 32), got U8 of shape (32, 16)",
    ),
    "quantize: codes dtype": ("quantize", ROW, [X, G], [s((32, 32), F8), SCALES], "row codes must be U8"),
    "quantize: scales dtype": (
        "quantize",
        ROW,
        [X, G],
        [CODES, s((32, 4), U8)],
        "row scales must be F8E4M3FN of shape (32, 4), got U8",
    ),
    "quantize: linear scales as swizzled": (
        "quantize",
        Mode(row=SWIZZLED),
        [X, G],
        [CODES, SCALES],
        "row scales must be F8E4M3FN of shape (128, 4), got F8E4M3FN of shape (32, 4)",
    ),
    "quantize: columns not transposed": (
        "quantize",
        COL,
        [X, G],
        [CODES, SCALES],
        "column codes must be U8 of shape (64, 16), got U8 of shape (32, 32)",
    ),
    "both: column codes": (
        "quantize",
        BOTH,
        [X, G, G],
        [CODES, SCALES, CODES, SCALES],
        "column codes must be U8 of shape (64, 16), got U8 of shape (32, 32)",
    ),
    "both: column scales": (
        "quantize",
        TILES,
        [X, G],
        [CODES, SCALES, COL_CODES, SCALES],
        "column scales must be F8E4M3FN",
    ),
    "stochastic: seed": (
        "quantize",
        Mode(row=STOCHASTIC),
        [X, G, s((4,), U32), ORIGIN],
        [CODES, SCALES],
        "seed must be U32 of shape (2,), got U32 of shape (4,)",
    ),
    "stochastic: origin": (
        "quantize",
        Mode(col=STOCHASTIC),
        [X, G, SEED, s((3,), jnp.int32)],
        [COL_CODES, COL_SCALES],
        "origin must be U32 of shape (3,), got S32 of shape (3,)",
    ),
    "stochastic: one origin for a batch": (
        "quantize",
        Mode(row=STOCHASTIC),
        [s((2, 32, 64)), s((2,)), s((2, 2), U32), ORIGIN],
        [s((2, 32, 32), U8), s((2, 32, 4), F8)],
        "origin must be U32 of shape (2, 3), got U32 of shape (3,)",
    ),
    "qdq: result": ("qdq", ROW, [X, G], [Y], "y must be F32 of shape (32, 64), got BF16"),
    "qdq: shape of the result": (
        "qdq",
        ROW,
        [X, G],
        [s((64, 32))],
        "y must be F32 of shape (32, 64), got F32 of shape (64",
    ),
    "qdq: columns": ("qdq", ROW, [s((32, 40)), G], [s((32, 40))], "columns of x must be a multiple of 16, got 40"),
    "qdq: tile rows": (
        "qdq",
        Mode(row=TILE),
        [s((24, 64)), G],
        [s((24, 64))],
        "rows of x must be a multiple of 16, got 24",
    ),
    "dequantize: scales": (
        "dequantize",
        ROW,
        [CODES, s((32, 5), F8), G],
        [Y],
        "row scales must be F8E4M3FN of shape (32, 4), got F8E4M3FN of shape (32, 5)",
    ),
    "dequantize: codes of 5 rows": (
        "dequantize",
        ROW,
        [s((5, 32), U8), SCALES, G],
        [Y],
        "row codes must be U8 of shape (32",
    ),
    "dequantize: amax": ("dequantize", ROW, [CODES, SCALES, s((), U32)], [Y], "amax must be F32 of shape (), got U32"),
    "dequantize: amax per row": ("dequantize", ROW, [CODES, SCALES, s((32,))], [Y], "shape (), got F32 of shape (32,)"),
    "dequantize: result dtype": (
        "dequantize",
        ROW,
        [CODES, SCALES, G],
        [s((32, 64), U8)],
        "y must be BF16, F16 or F32",
    ),
    "dequantize: half a block": (
        "dequantize",
        ROW,
        [s((32, 20), U8), s((32, 2), F8), G],
        [s((32, 40))],
        "columns of y must be a multiple of 16, got 40",
    ),
    "decode: result dtype": ("decode", ROW, [CODES, SCALES], [X], "y must be BF16, got F32"),
    "decode: codes": ("decode", ROW, [s((32, 30), U8), SCALES], [Y], "row codes must be U8 of shape (32, 32), got U8"),
    # Which operands and results there are.
    "no amax": (
        "quantize",
        ROW,
        [X],
        [CODES, SCALES],
        "2 operands (x, amax) and 2 results (row codes, row scales), got 1",
    ),
    "one operand too many": ("qdq", ROW, [X, G, G], [X], "2 operands (x, amax) and 1 results (y), got 3 and 1"),
    "no operand": ("amax", ANY, [], [G], "1 operands (x) and 1 results (amax), got 0 and 1"),
    "no column result": (
        "quantize",
        BOTH,
        [X, G],
        [CODES, SCALES],
        "4 results (row codes, row scales, column codes, column scales), got 2 and 2",
    ),
    "a column result too many": ("quantize", ROW, [X, G], [CODES, SCALES, COL_CODES, COL_SCALES], "got 2 and 4"),
    "no seed": ("quantize", Mode(row=STOCHASTIC), [X, G], [CODES, SCALES], "4 operands (x, amax, seed, origin)"),
    "a seed for nearest": ("quantize", ROW, [X, G, SEED, ORIGIN], [CODES, SCALES], "2 operands (x, amax)"),
    "decode takes no amax": ("decode", ROW, [CODES, SCALES, G], [Y], "2 operands (row codes, row scales)"),
    "dequantize takes an amax": ("dequantize", ROW, [CODES, SCALES], [Y], "3 operands (row codes, row scales, amax)"),
    # Modes.
    **{
        f"no direction: {verb}": (verb, ANY, operands, results, "neither row nor col")
        for verb, operands, results in (
            ("quantize", [X, G], [CODES, SCALES]),
            ("qdq", [X, G], [X]),
            ("dequantize", [G], [Y]),
            ("decode", [], [Y]),
        )
    },
    "row scope, columnwise": (
        "quantize",
        Mode(scope=Scope.ROW, col=PLAIN),
        [X, s((32,))],
        [COL_CODES, COL_SCALES],
        "per row",
    ),
    "row scope, both": (
        "quantize",
        Mode(scope=Scope.ROW, row=PLAIN, col=PLAIN),
        [X, s((32,))],
        [CODES, SCALES, COL_CODES, COL_SCALES],
        "an amax per row needs blocks of one row along the last axis: give one amax per matrix",
    ),
    "row scope, tiles": ("quantize", Mode(scope=Scope.ROW, row=TILE), [X, s((32,))], [CODES, SCALES], "per row"),
    "row scope, qdq of tiles": ("qdq", Mode(scope=Scope.ROW, row=TILE), [X, s((32,))], [X], "per row"),
    "different blocks": (
        "quantize",
        Mode(row=PLAIN, col=TILE),
        [X, G],
        [CODES, SCALES, COL_CODES, COL_SCALES],
        "both directions of a call have the same blocks: make two calls",
    ),
    "stochastic tiles": (
        "quantize",
        Mode(row=Direction(tile=True, stochastic=True)),
        [X, G, SEED, ORIGIN],
        [CODES, SCALES],
        "tiles are never rounded stochastically",
    ),
    "stochastic columns beside tiles": (
        "quantize",
        Mode(row=TILE, col=Direction(tile=True, stochastic=True)),
        [X, G, SEED, ORIGIN],
        [CODES, SCALES, COL_CODES, COL_SCALES],
        "tiles are never rounded stochastically",
    ),
    "qdq rounds to nearest": ("qdq", Mode(row=STOCHASTIC), [X, G], [X], "only quantize rounds stochastically"),
    "qdq along the rows": ("qdq", COL, [X, G], [X], "only quantize has a col"),
    "qdq both ways": ("qdq", BOTH, [X, G], [X], "only quantize has a col"),
    "qdq swizzled": ("qdq", Mode(row=SWIZZLED), [X, G], [X], "unswizzle"),
    "dequantize a stored column": ("dequantize", COL, [COL_CODES, COL_SCALES, G], [Y], "as it is stored, as row"),
    "dequantize both": (
        "dequantize",
        BOTH,
        [CODES, SCALES, COL_CODES, COL_SCALES, G],
        [Y],
        "only quantize has a col: pass the operand as it is stored, as row",
    ),
    "dequantize swizzled scales": (
        "dequantize",
        Mode(row=SWIZZLED),
        [CODES, s((128, 4), F8), G],
        [Y],
        "scales are linear here: unswizzle them first",
    ),
    "decode swizzled scales": ("decode", Mode(row=SWIZZLED), [CODES, s((128, 4), F8)], [Y], "unswizzle them first"),
    "dequantize rounds to nearest": (
        "dequantize",
        Mode(row=STOCHASTIC),
        [CODES, SCALES, G],
        [Y],
        "only quantize rounds",
    ),
    # Attributes that are no mode; where a member is missing, too many, or of another type, XLA says so.
    **{
        f"{name} {value}": ("quantize", told(ROW, **{name: np.int32(value)}), [X, G], [CODES, SCALES], said)
        for name, value, said in (
            ("format", -1, "format of the mode must be 0 to"),
            ("format", 99, "got 99: the library and the package are of different versions"),
            ("scope", -1, "scope of the mode must be 0 (tensor), 1 (row) or 2 (group), got -1"),
            ("scope", 3, "scope of the mode must be 0 (tensor), 1 (row) or 2 (group), got 3"),
            ("math", 2, "math of the mode must be 0 (exact) or 1 (fast), got 2"),
            ("search_error", 4, "search_error of the mode must be 0 to 3, got 4"),
        )
    },
    **{
        f"{member} without its direction": (
            "quantize",
            told(ROW, **{member: np.bool_(True)}),
            [X, G],
            [CODES, SCALES],
            "says how col is quantized, but has no col",
        )
        for member in ("col_tile", "col_stochastic", "col_swizzled")
    },
    "row_tile without its direction": (
        "quantize",
        told(COL, row_tile=np.bool_(True)),
        [X, G],
        [COL_CODES, COL_SCALES],
        "says how row is quantized, but has no row",
    ),
    "no format": ("amax", told(ANY, format=None), [X], [G], f"expected {MEMBERS} attributes but got {MEMBERS - 1}"),
    "no scope": ("amax", told(ANY, scope=None), [X], [G], f"expected {MEMBERS} attributes but got {MEMBERS - 1}"),
    "no col_swizzled": (
        "quantize",
        told(ROW, col_swizzled=None),
        [X, G],
        [CODES, SCALES],
        f"expected {MEMBERS} attributes but got {MEMBERS - 1}",
    ),
    "a member too many": (
        "quantize",
        told(ROW, hadamard=np.bool_(False)),
        [X, G],
        [CODES, SCALES],
        f"expected {MEMBERS} attributes but got {MEMBERS + 1}",
    ),
    "a member of another name": (
        "quantize",
        told(ROW, col_swizzled=None, column_swizzled=np.bool_(False)),
        [X, G],
        [CODES, SCALES],
        "Unexpected attribute: col_swizzled",
    ),
    "a member of another type": (
        "quantize",
        told(ROW, row=np.int32(1)),
        [X, G],
        [CODES, SCALES],
        "expected PRED but got S32",
    ),
    "a scope of another type": (
        "quantize",
        told(ROW, scope=np.int64(0)),
        [X, G],
        [CODES, SCALES],
        "expected S32 but got S64",
    ),
    "no mode at all": ("quantize", np.int32(0), [X, G], [CODES, SCALES], "expected dictionary but got scalar"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_impossible_call_is_an_error(case):
    verb, mode, operands, results, said = IMPOSSIBLE[case]
    with pytest.raises(jax.errors.JaxRuntimeError, match="INVALID_ARGUMENT") as raised:
        call(verb, mode, operands, results)
    assert said in str(raised.value)


@pytest.mark.parametrize("attributes", [{}, {"mode": ROW.attribute(), "axis": np.int32(-1)}], ids=["none", "surplus"])
def test_the_mode_is_the_only_attribute(attributes):
    run = jax.jit(lambda x, g: jax.ffi.ffi_call("nvfp4_quantize", [CODES, SCALES])(x, g, **attributes))
    with pytest.raises(jax.errors.JaxRuntimeError, match="INVALID_ARGUMENT"):
        jax.block_until_ready(run(jnp.zeros(X.shape), jnp.zeros(())))


POSSIBLE = [
    *(("amax", Mode(scope=scope)) for scope in Scope),
    *(
        ("amax", mode)
        for mode in (HADAMARD, Mode(row=PLAIN, col=HADAMARD.col), Mode(scope=Scope.GROUP, col=HADAMARD.col))
    ),
    *(
        ("quantize", mode)
        for mode in (ROW, COL, BOTH, TILES, Mode(row=TILE), Mode(col=TILE), Mode(scope=Scope.ROW, row=PLAIN))
    ),
    *(("quantize", replace(mode, scope=Scope.GROUP)) for mode in (ROW, COL, BOTH)),
    *(("quantize", Mode(format=FORMATS[name], row=PLAIN, col=PLAIN)) for name in ("mxfp8", "mxfp8_e5m2")),
    ("quantize", replace(HADAMARD, row=PLAIN, math=Math.FAST)),
    ("qdq", replace(ROW, search=Search(SearchError.MAE), emax=256.0)),
    *((verb, Mode(format=FORMATS["mxfp8"], row=PLAIN)) for verb in ("qdq", "dequantize", "decode")),
    *(("quantize", Mode(row=row, col=col)) for row in (STOCHASTIC, SWIZZLED, None) for col in (STOCHASTIC, SWIZZLED)),
    *(("qdq", mode) for mode in (ROW, Mode(row=TILE), Mode(scope=Scope.ROW, row=PLAIN))),
    *((verb, mode) for verb in ("dequantize", "decode") for mode in (ROW, Mode(row=TILE))),
    ("dequantize", Mode(scope=Scope.ROW, row=PLAIN)),
]


@pytest.mark.parametrize("verb, mode", POSSIBLE, ids=str)
@pytest.mark.parametrize("batch", [(), (2, 3)], ids=str)
def test_the_tables_of_roles_agree(verb, mode, batch):
    """`mode.VERBS` and `mode.result` say what `call.h` accepts: the same roles, in the same order, in these shapes."""

    def struct(role):
        if role in ("x", "seed", "origin"):
            shape = {"x": (32, 64), "seed": (2,), "origin": (3,)}[role]
            return s((*batch, *shape), F32 if role == "x" else U32)
        return s(*result(role, mode, batch, 32, 64, 5, "bfloat16" if verb == "decode" else "float32"))

    operands, results = ([struct(role.name) for role in roles] for roles in VERBS[verb](mode))
    assert [r.shape for r in call(verb, mode, operands, results)] == [r.shape for r in results]
