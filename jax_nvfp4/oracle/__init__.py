"""The numerics contract in NumPy: what every backend must produce, bit for bit (docs/numerics.md).

The same names and arguments as the public operations, on NumPy arrays of bfloat16, float16 or float32.
Only NumPy and ml_dtypes are used. NumPy follows the floating-point mode of the calling thread and XLA
flushes subnormals on its own threads, so never run the oracle inside a JAX callback.
"""

from jax_nvfp4.oracle.nvfp4 import Quantized, amax, decode, dequantize, qdq, quantize, quantize_dual
from jax_nvfp4.oracle.swizzle import swizzle_scales, unswizzle_scales

__all__ = [
    "Quantized",
    "amax",
    "decode",
    "dequantize",
    "qdq",
    "quantize",
    "quantize_dual",
    "swizzle_scales",
    "unswizzle_scales",
]
