"""What targets whose kernels are in a language of C's family have in common.

A dialect is a `Writer` of `dialect.py`, and two headers of its own: names.h, with what the scalar
functions in `templates/` need, and kernel.h, with what its kernels have beside them.
"""
