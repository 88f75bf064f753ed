"""What both benches measure, and what is wanted of it: cases of `jax_nvfp4.testing`, each with its targets.

To measure a mode, add a row. The call, its operands, its bytes and the oracle's time follow from the case, XLA's
version from `xla_baseline.versions`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import xla_baseline

import jax_nvfp4
from jax_nvfp4 import MXFP8, NVFP4_2D
from jax_nvfp4.formats import FLOAT_DTYPES
from jax_nvfp4.testing import Case
from jax_nvfp4.testing.cases import COL, DUAL, MX_SWIZZLED, ROW_SCOPE, SWIZZLED, SWIZZLED_2D


@dataclass(frozen=True)
class Measured:
    """One row of the printed tables.

    Attributes:
        case: what is called.
        computes_amax: whether the amax is computed inside, rather than given.
        share: the least wanted of the copy's rate, on a GPU; 0 where nothing is.
        times_xla: of the speed of XLA's version, on a GPU; a CPU wants 1.
        times_oracle: of the speed of the NumPy oracle, on a CPU.
    """

    case: Case
    computes_amax: bool = False
    share: float = 0
    times_xla: float = 1
    times_oracle: float = 100

    @property
    def name(self) -> str:
        """As printed, and in the result files."""
        return self.case.name + " with amax" * self.computes_amax

    @property
    def call(self) -> Callable:
        """What is measured, a function of `operands`."""
        return self.case.call

    @property
    def xla(self) -> dict[str, Callable]:
        """XLA's versions of it."""
        return xla_baseline.versions(self.case, self.computes_amax)

    def operands(self, x) -> tuple:
        """The operands of `call`, made from x."""
        is_given = not self.computes_amax and self.case.verb != "amax" and self.case.spec.facts.has_amax
        return self.case.operands(x, jax_nvfp4.amax(x, scope=self.case.spec.scope) if is_given else None)

    def reference(self, *operands: np.ndarray) -> tuple[np.ndarray, ...]:
        """The oracle's version of `call`."""
        case = self.case
        return case.read_reference(*operands) if case.reads_codes else case.reference(*operands)

    def bytes_moved(self, shape: tuple[int, int], dtype: str) -> int:
        """Every operand and result once; x twice where its amax comes first."""
        return self.case.bytes_moved(shape, dtype) + self.computes_amax * Case("amax").bytes_moved(shape, dtype)

    def missed(self, device: str, r: dict[str, float]) -> list[tuple[str, str]]:
        """The targets that a result on "cpu" or "gpu" does not reach: (what is wanted, what was reached)."""
        share = ("% of the copy", 100 * self.share, 100 * r["share_of_copy"])
        oracle = ("x the oracle", self.times_oracle, r.get("times_oracle", 0))
        targets = {
            "cpu": [oracle, ("x XLA", 1, r["times_xla"])],
            "gpu": [share, ("x XLA", self.times_xla, r["times_xla"])],
        }
        return [(f"{least:.4g}{unit}", f"{got:.4g}{unit[0]}") for unit, least, got in targets[device] if got < least]

    def is_close(self, actual, expected) -> bool:
        """Whether another version computes the same, but for another order of rounding and other random numbers."""
        codes = self.case.spec.facts.code_dtype

        def share_that_differs(a, e) -> float:
            is_number = a.dtype.name in FLOAT_DTYPES
            return float((abs(a - e) > 0.01 * abs(e) if is_number else a != e).mean())

        return all(
            a.shape == e.shape
            and a.dtype == e.dtype
            and share_that_differs(a, e) <= (0.75 if self.case.is_stochastic and a.dtype == codes else 0.01)
            for a, e in zip(actual, expected, strict=True)
        )


MEASURED = (
    Measured(Case("amax"), share=0.95, times_oracle=1),
    Measured(Case("amax", ROW_SCOPE), share=0.95, times_oracle=1),
    Measured(Case("qdq"), share=0.95, times_xla=2),
    Measured(Case("qdq"), computes_amax=True, share=0.9, times_xla=1.6),
    Measured(Case("qdq", ROW_SCOPE), share=0.9),
    Measured(Case("qdq", NVFP4_2D), share=0.8),
    Measured(Case("quantize"), share=0.95, times_xla=5),
    Measured(Case("quantize", SWIZZLED), share=0.93, times_xla=5),
    Measured(Case("quantize", ROW_SCOPE), share=0.9),
    Measured(Case("quantize", is_stochastic=True)),
    Measured(Case("quantize", axes=COL), share=0.85),
    Measured(Case("quantize", SWIZZLED, COL), share=0.85),
    Measured(Case("quantize", axes=COL, is_stochastic=True)),
    Measured(Case("quantize", NVFP4_2D), share=0.8),
    Measured(Case("quantize", NVFP4_2D, DUAL), share=0.8),
    Measured(Case("quantize", SWIZZLED_2D, DUAL), share=0.8),
    Measured(Case("quantize", MXFP8)),
    Measured(Case("quantize", MXFP8, COL)),
    Measured(Case("quantize", MX_SWIZZLED, DUAL), share=0.9, times_xla=3.7),
    Measured(Case("dequantize", dtype="bfloat16"), share=0.93),
    Measured(Case("dequantize", axes=COL, dtype="bfloat16")),
    Measured(Case("decode", dtype="bfloat16"), share=0.93),
)
"""Every rate that a document claims has a row here."""
