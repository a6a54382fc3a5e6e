"""Programs of the fuzzer that are written by hand."""

from typing import Any

from torch_tenon.testing.fuzz.program import Program, Statement


def lines(*statements: tuple[Any, ...]) -> Program:
    """Of statements as an operation, its operands, and the name of the result where there is
    one."""
    return Program([Statement(name, operands, *rest) for name, operands, *rest in statements])
