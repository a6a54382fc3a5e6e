"""PyTorch's decompositions of tensors whose sizes are numbers, without SymPy.

They ask `torch.fx.experimental.symbolic_shapes` what is known of a size, and whether an argument is
an expression of SymPy's. Either loads SymPy: half a second before the first plan. Of a number all
is known, and it is no expression. So what answers for numbers stands for these modules. They are
loaded as soon as a size is a symbol, or anybody asks for more of them.
"""

from __future__ import annotations

import functools
import importlib
import operator
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_SHAPES = "torch.fx.experimental.symbolic_shapes"
_PLAIN = (bool, int, float)


def _itself(x: Any) -> Any:
    return x


def _equal(x: Any, y: Any) -> bool:
    if isinstance(x, tuple | list):
        return len(x) == len(y) and all(map(_equal, x, y))
    return bool(x == y)


# What each function of the module answers for numbers.
_ANSWERS: dict[str, Callable[..., Any]] = {
    "expect_true": _itself,
    "guard_bool": _itself,
    "guard_int": _itself,
    "guard_or_false": _itself,
    "guard_or_true": _itself,
    "guard_size_oblivious": _itself,
    "guarding_hint_or_throw": _itself,
    "statically_known_true": _itself,
    "has_guarding_hint": lambda _: True,
    "is_nested_int": lambda _: False,
    "sym_and": lambda *x: functools.reduce(operator.and_, x),
    "sym_or": lambda *x: functools.reduce(operator.or_, x),
    "sym_eq": _equal,
}


def _is_plain(x: Any) -> bool:
    if isinstance(x, tuple | list):
        return all(map(_is_plain, x))
    return isinstance(x, _PLAIN)


class _Waiting(ModuleType):
    """Stands for a module until more of it is asked for than it has."""

    def __getattr__(self, name: str) -> Any:
        # Python asks for `__path__` before it imports a module inside of a package, but also before
        # it takes a name out of any module.
        if name.startswith("__") and (name, self.__name__) != ("__path__", "sympy"):
            raise AttributeError(name)
        return getattr(self.whole(), name)

    def whole(self) -> ModuleType:
        """The module itself, which is loaded now."""
        name = self.__name__
        if sys.modules.get(name) is self:
            del sys.modules[name]
        # Whoever imported this keeps it, and gets the module's own from now on.
        for answered in [n for n in vars(self) if not n.startswith("__")]:
            del vars(self)[answered]
        return importlib.import_module(name)


class _Expression:
    """Stands for an expression of SymPy's: nothing is one while SymPy is not there."""


def _answer(
    module: _Waiting, name: str, answer: Callable[..., Any], *args: Any, **keywords: Any
) -> Any:
    if not keywords and all(map(_is_plain, args)):
        return answer(*args)
    return getattr(module.whole(), name)(*args, **keywords)


def install() -> None:
    """Lets the modules wait that nothing has loaded: in a process without a user's code."""
    shapes, sympy = _Waiting(_SHAPES), _Waiting("sympy")
    for name, answer in _ANSWERS.items():
        setattr(shapes, name, functools.partial(_answer, shapes, name, answer))
    vars(sympy)["Basic"] = _Expression
    for module in (shapes, sympy):
        sys.modules.setdefault(module.__name__, module)
