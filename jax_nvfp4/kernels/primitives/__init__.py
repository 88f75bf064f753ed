"""Device functions shared by the kernels: the only code that may depend on the GPU family.

Functions take and return registers. `hopper` (a compile-time bool) selects the sm_90 form of a function
that has two: exact float and integer arithmetic there, the hardware FP4 conversion on sm_100 and later.
Both forms are the numerics contract, bit for bit.
"""
