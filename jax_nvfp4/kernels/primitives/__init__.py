"""Device functions shared by the kernels: the only code that holds PTX or depends on the GPU family.

Functions take and return registers. Where a family has an instruction that others lack, the function that uses it has
a form for each (`family` says which applies), and all forms are the numerics contract, bit for bit.

Two files are what later modes add to: `scaling`, how a block is scaled, and `placement`, where blocks lie. Both are
chosen while tracing, so that a kernel is written once and its loops hold no branch on a mode.
"""
