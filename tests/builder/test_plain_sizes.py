"""What stands for PyTorch's module of symbolic sizes, and SymPy, in the builder."""

from __future__ import annotations

import fresh_process

NUMBERS = """
import sys
import torch, torch_tenon
from torch_tenon.builder import plain_sizes
plain_sizes.install()

x = torch.randn(3, 4, device="meta")
w = torch.randn(4, device="meta")
from torch._decomp import decomposition_table as table
from torch._refs import _broadcast_shapes
table[torch.ops.aten.native_layer_norm.default](x, [4], w, w, 1e-5)
table[torch.ops.aten.silu_backward.default](x, x)
torch._check(x.numel() == 12)
print(tuple(_broadcast_shapes((3, 1), (4,))))
from torch.fx.experimental.symbolic_shapes import guard_or_false, sym_and, sym_eq, sym_or
print(sym_eq((1, 2), (1, 2)), sym_eq([1, 2], [1, 3]), sym_and(True, False), sym_or(False, True))
print(guard_or_false(1 == 1), "mpmath" in sys.modules)
"""

SYMBOLS = """
import sys
import torch, torch_tenon
from torch_tenon.builder import plain_sizes
plain_sizes.install()
from torch.fx.experimental.symbolic_shapes import guard_or_false, statically_known_true

from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
mode = FakeTensorMode(shape_env=ShapeEnv())
context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
x = mode.from_tensor(torch.zeros(5), symbolic_context=context)
print(guard_or_false(x.shape[0] > 3), statically_known_true(x.shape[0] == x.shape[0]))
import sympy.core
print(sympy.Symbol("n") + 1, isinstance(sympy, type(sys)), sympy.core.Basic is sympy.Basic)
"""


def test_numbers_need_no_sympy() -> None:
    printed = fresh_process.output(NUMBERS)
    assert printed == "(3, 4)\nTrue False False True\nTrue False"


def test_symbols_load_the_modules() -> None:
    printed = fresh_process.output(SYMBOLS)
    assert printed == "True True\nn + 1 True True"
