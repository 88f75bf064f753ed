"""The table of cases: what it covers, and what it derives, beside literals, because every other test believes it."""

import itertools
from dataclasses import fields

import jax.numpy as jnp
import numpy as np
import pytest

from jax_nvfp4 import MXFP8, NVFP4, NVFP4_2D, QuantSpec
from jax_nvfp4.formats import FLOAT_DTYPES, FORMATS
from jax_nvfp4.mode import VERBS, Direction
from jax_nvfp4.testing import CASES, Case, make
from jax_nvfp4.testing.cases import COL, DUAL, GROUPS, HADAMARD, ROW, ROW_SCOPE, SWIZZLED, SWIZZLED_2D


def name(value):
    return getattr(value, "name", str(value).replace(" ", ""))


def test_cases_are_values_with_names_of_their_own():
    assert len(set(CASES)) == len({case.name for case in CASES}) == len(CASES)
    assert Case("quantize", QuantSpec(), (-1,)) in CASES


def test_every_verb_format_and_flag_of_a_direction_occurs():
    assert {case.verb for case in CASES} == set(VERBS)
    assert {case.spec.format for case in CASES} == set(FORMATS)
    quantized = [case for case in CASES if case.verb == "quantize"]
    for axes in (ROW, COL, DUAL):
        directions = [d for case in quantized if case.axes == axes for d in case.mode.directions]
        for field in fields(Direction):
            if axes == ROW and field.name == "rht":  # rows are never transformed
                continue
            assert len({getattr(d, field.name) for d in directions}) > 1, (axes, field.name)
    assert {case.dtype for case in CASES if case.verb == "dequantize"} == set(FLOAT_DTYPES)


def test_every_combination_that_quantize_accepts_is_in_the_table():
    x = make("normal", (16, 16), "float32")
    plain = [
        QuantSpec(block=block, scope=scope, scale_layout=layout)
        for block, scope, layout in itertools.product(NVFP4.facts.blocks, ("tensor", "row"), ("linear", "swizzled"))
        if not (block[0] > 1 and scope == "row")
    ]
    accepted = set()
    for case in itertools.starmap(Case, itertools.product(("quantize",), plain, (ROW, COL, DUAL), (False, True))):
        try:
            case.run(x)
        except ValueError:
            continue
        accepted.add(case)
    assert accepted == {case for case in CASES if case.verb == "quantize" and case.spec in plain}


@pytest.mark.parametrize(
    "case, multiples",
    [
        (Case("amax"), (1, 1)),
        (Case("amax", ROW_SCOPE), (1, 1)),
        (Case("quantize"), (1, 16)),
        (Case("quantize", SWIZZLED), (1, 16)),
        (Case("quantize", ROW_SCOPE, is_stochastic=True), (1, 16)),
        (Case("quantize", axes=COL), (16, 1)),
        (Case("quantize", SWIZZLED, COL), (16, 1)),
        (Case("quantize", axes=DUAL), (16, 16)),
        (Case("quantize", NVFP4_2D), (16, 16)),
        (Case("quantize", SWIZZLED_2D, DUAL), (16, 16)),
        (Case("dequantize", axes=COL, dtype="float32"), (16, 1)),
        (Case("decode"), (1, 16)),
        (Case("qdq", NVFP4_2D), (16, 16)),
        (Case("quantize", MXFP8, DUAL), (32, 32)),
        (Case("quantize", HADAMARD, DUAL), (16, 16)),
        (Case("amax", HADAMARD, COL), (16, 1)),
        (Case("quantize", GROUPS, COL), (16, 1)),
    ],
    ids=name,
)
def test_multiples(case, multiples):
    assert case.multiples == multiples
    rows, columns = multiples
    assert case.fits((3 * rows, 5 * columns)) and case.fits((2, 0, columns))
    assert case.fits((rows + 8, columns)) == (rows == 1)
    assert case.fits((rows, columns + 8)) == (columns == 1)


@pytest.mark.parametrize(
    "case, shape, shards, cut",
    [
        (Case("amax"), (8, 8), (8, 8), None),
        (Case("quantize"), (8, 256), (8, 1), None),
        (Case("quantize"), (8, 256), (1, 16), None),
        (Case("quantize"), (8, 256), (1, 32), 16),
        (Case("quantize"), (8, 96), (1, 4), 16),
        (Case("quantize", axes=COL), (256, 8), (1, 8), None),
        (Case("quantize", axes=COL), (256, 8), (16, 1), None),
        (Case("quantize", axes=COL), (256, 8), (32, 1), 16),
        (Case("quantize", axes=DUAL, is_stochastic=True), (32, 64), (2, 4), None),
        (Case("quantize", axes=DUAL, is_stochastic=True), (32, 64), (4, 1), 16),
        (Case("quantize", NVFP4_2D), (64, 64), (8, 1), 16),
        (Case("quantize", NVFP4_2D, COL), (64, 64), (1, 8), 16),
        (Case("quantize", SWIZZLED), (256, 64), (2, 1), None),
        (Case("quantize", SWIZZLED), (256, 64), (4, 1), 128),
        (Case("quantize", SWIZZLED), (256, 64), (1, 2), 64),
        (Case("quantize", SWIZZLED, COL), (64, 256), (1, 2), None),
        (Case("quantize", SWIZZLED, COL), (64, 256), (1, 4), 128),
        (Case("quantize", SWIZZLED, COL), (64, 256), (2, 1), 64),
        (Case("quantize", SWIZZLED_2D, DUAL), (256, 256), (2, 1), 256),
        (Case("quantize", SWIZZLED_2D, DUAL), (256, 256), (1, 2), 256),
        (Case("quantize", SWIZZLED_2D, DUAL), (256, 256), (1, 1), None),
        (Case("qdq", NVFP4_2D), (32, 32), (2, 2), None),
    ],
    ids=name,
)
def test_what_may_stay_sharded(case, shape, shards, cut):
    assert case.cut(shape, shards) == cut
    assert case.holds_whole_blocks(shape, shards) == (cut is None)


@pytest.mark.parametrize(
    "case, dtype, per_element",
    [
        (Case("amax"), "bfloat16", 2),
        (Case("amax", ROW_SCOPE), "float32", 4),
        (Case("quantize"), "bfloat16", 2 + 9 / 16),
        (Case("quantize", axes=COL, is_stochastic=True), "float32", 4 + 9 / 16),
        (Case("quantize", NVFP4_2D, DUAL), "float16", 2 + 9 / 8),
        (Case("dequantize", dtype="float32"), "bfloat16", 9 / 16 + 4),
        (Case("dequantize", axes=COL, dtype="float16"), "bfloat16", 9 / 16 + 2),
        (Case("decode", dtype="bfloat16"), "float32", 9 / 16 + 2),
        (Case("qdq"), "bfloat16", 4),
        (Case("qdq"), "float32", 8),
        (Case("quantize", HADAMARD, DUAL), "bfloat16", 2 + 9 / 8),
        (Case("quantize", MXFP8, DUAL), "bfloat16", 2 + 33 / 16),
    ],
    ids=name,
)
def test_bytes_moved(case, dtype, per_element):
    assert case.bytes_moved((256, 512), dtype) == 256 * 512 * per_element
    assert case.bytes_moved((3, 256, 512), dtype) == 3 * 256 * 512 * per_element


def test_bytes_moved_count_the_padding_of_swizzled_scales():
    assert Case("quantize", SWIZZLED).bytes_moved((16, 16), "bfloat16") == 16 * 16 * 2 + 16 * 8 + 128 * 4


@pytest.mark.parametrize("case", CASES, ids=name)
def test_call_is_run_without_what_was_given(case):
    """What a bench measures is what the other tests compare with the oracle."""
    x = jnp.asarray(make("normal", (96, 32), "bfloat16"))
    is_plain = case.spec.facts.has_amax and case.spec.rht is None and case.spec.scope != "group"
    amax = jnp.max(jnp.abs(x), axis=-1 if case.spec.scope == "row" else None).astype(jnp.float32)
    called = case.call(*case.operands(x, amax if is_plain else None))
    everything = [np.asarray(a).tobytes() for a in case.run(x)]
    if case.verb == "quantize":
        everything = [a for i, a in enumerate(everything) if i % (3 if case.spec.facts.has_amax else 2) < 2]
    assert [np.asarray(a).tobytes() for a in called] == everything
    assert len(called) == len(VERBS[case.verb](case.mode)[1])
