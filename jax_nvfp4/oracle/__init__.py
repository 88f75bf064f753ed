"""The numerics contract in NumPy: what every backend must produce, bit for bit (docs/numerics.md).

The same names and arguments as the public operations, on NumPy arrays of bfloat16, float16 or float32. What differs:

* `key` is two uint32 words, the Philox key (section 6), not a JAX random key; also one pair per batch element, which a
  mapped key is to the public operations.
* Results are `Quantized` and NumPy arrays; `amax` of a `Quantized` is None where the format has none.
* Sizes of groups are checked here and now; `poisoned_amax` and `poisoned_quantize` say what a GPU makes of wrong ones.
* `intermediates` returns every step of quantizing by its name.

Only NumPy and ml_dtypes are used. NumPy follows the floating-point mode of the calling thread and XLA
flushes subnormals on its own threads, so never run the oracle inside a JAX callback.
"""

from jax_nvfp4.oracle.container import Quantized
from jax_nvfp4.oracle.grouped import (
    grouped_amax,
    grouped_quantize,
    grouped_quantize_dual,
    pad_groups,
    poisoned_amax,
    poisoned_quantize,
    unpad_groups,
)
from jax_nvfp4.oracle.operations import amax, decode, dequantize, intermediates, qdq, quantize, quantize_dual
from jax_nvfp4.oracle.swizzle import (
    swizzle_group_scales,
    swizzle_scales,
    unswizzle_group_scales,
    unswizzle_scales,
)

__all__ = [
    "Quantized",
    "amax",
    "decode",
    "dequantize",
    "grouped_amax",
    "grouped_quantize",
    "grouped_quantize_dual",
    "intermediates",
    "pad_groups",
    "poisoned_amax",
    "poisoned_quantize",
    "qdq",
    "quantize",
    "quantize_dual",
    "swizzle_group_scales",
    "swizzle_scales",
    "unpad_groups",
    "unswizzle_group_scales",
    "unswizzle_scales",
]
