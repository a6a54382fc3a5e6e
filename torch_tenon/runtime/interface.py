"""What include/tenon.h and docs/program-file.md fix, for all in Python who need it."""

from __future__ import annotations

INTERFACE = 1  # TENON_INTERFACE
OUT_OF_MEMORY, OUT_OF_RANGE = 2, 6  # of the codes of errors
MOST_DIMENSIONS = 16  # TENON_MOST_DIMENSIONS
NO_BOUND = 1 << 62  # TENON_NO_BOUND
MAGIC = b"tenon program 2\n"  # what a program's file begins with
