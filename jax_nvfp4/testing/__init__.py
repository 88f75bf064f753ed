"""What tests, doctor and benches share: data families, the table of cases, and how results are compared."""

from jax_nvfp4.testing.cases import CASES, Case, arrays, key_words, random_key
from jax_nvfp4.testing.compare import assert_same_bytes, sqnr
from jax_nvfp4.testing.data import E2M1_MIDPOINTS, E4M3_POSITIVE, FAMILIES, ORDER_SENSITIVE_AMAX, make

__all__ = [
    "CASES",
    "E2M1_MIDPOINTS",
    "E4M3_POSITIVE",
    "FAMILIES",
    "ORDER_SENSITIVE_AMAX",
    "Case",
    "arrays",
    "assert_same_bytes",
    "key_words",
    "make",
    "random_key",
    "sqnr",
]
