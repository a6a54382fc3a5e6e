"""Expressions in declarations of custom ops: sizes, and ops of ops, both in Python's syntax.

    numel(x), cdiv(size(x, 0), 64) * n       a size, of tensors and whole numbers by their names
    aten::where(aten::gt(x, a), x - a, 0)    a tensor, of other ops by their qualified names

Only what is listed here is understood; nothing is run but ops and arithmetic.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torch_tenon.ops.manifest import nearest


class ExpressionError(ValueError):
    """An expression that means nothing; the text says why."""


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_WHOLE = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_QUALIFIED = re.compile(r"\b([A-Za-z_]\w*)::([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?)")

Sizes = Sequence[Any]


def numel(sizes: Sizes | None) -> Any:
    """The number of elements of a tensor of these sizes; 0 of one that is absent."""
    return 0 if sizes is None else functools.reduce(operator.mul, sizes, 1)


def _parse(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ExpressionError(f"{text!r} is no expression: {error.msg}") from None


class SizeExpression:
    """A whole number of sizes and integers; names are checked when it is made.

    `tensors` and `integers` are the names that it may use. Raises ExpressionError.
    """

    def __init__(self, text: str, tensors: Sequence[str], integers: Sequence[str]) -> None:
        self.text, self.tensors, self.integers = text, tensors, integers
        self.tree = _parse(text)
        self._check(self.tree)

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Its value; `values` are the sizes of tensors (None: absent) and the integers by name."""
        return self._value(self.tree, values)

    def constant(self) -> int | None:
        """Its value where that is the same in every call."""
        named = any(isinstance(n, ast.Name) and n.id != "cdiv" for n in ast.walk(self.tree))
        return None if named else int(self({}))

    def _check(self, node: ast.expr) -> None:
        match node:
            case ast.Constant(value=int()):
                return
            case ast.Name(id=name):
                if name in self.tensors:
                    raise ExpressionError(
                        f"{self.text!r}: {name} is a tensor; numel({name}) is a size"
                    )
                self._require(name, self.integers)
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _WHOLE):
                self._check(left)
                self._check(right)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                self._check(operand)
            case ast.Call(func=ast.Name(id="numel"), args=[ast.Name(id=name)], keywords=[]):
                self._require(name, self.tensors)
            case ast.Call(
                func=ast.Name(id="size"), args=[ast.Name(id=name), dimension], keywords=[]
            ):
                self._require(name, self.tensors)
                self._dimension(dimension)
            case ast.Call(func=ast.Name(id="cdiv"), args=[a, b], keywords=[]):
                self._check(a)
                self._check(b)
            case _:
                raise ExpressionError(
                    f"{self.text!r}: {ast.unparse(node)} is no size; there are whole numbers, "
                    "numel(x), size(x, dimension), cdiv(a, b), + - * // %"
                )

    def _require(self, name: str, names: Sequence[str]) -> None:
        if name not in names:
            known = ", ".join(names) or "none"
            raise ExpressionError(f"{self.text!r}: there is no {name} here, only {known}")

    def _dimension(self, node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(dimension)):
                return dimension
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(dimension))):
                return -dimension
        raise ExpressionError(f"{self.text!r}: a dimension is a number")

    def _value(self, node: ast.expr, values: Mapping[str, Any]) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return values[name]
            case ast.BinOp(left=left, op=op, right=right):
                return _BINARY[type(op)](self._value(left, values), self._value(right, values))
            case ast.UnaryOp(operand=operand):
                return -self._value(operand, values)
            case ast.Call(func=ast.Name(id="numel"), args=[ast.Name(id=name)]):
                return numel(values[name])
            case ast.Call(func=ast.Name(id="cdiv"), args=[a, b]):
                divisor = self._value(b, values)
                return (self._value(a, values) + divisor - 1) // divisor
            case ast.Call(args=[ast.Name(id=name), dimension]):
                sizes = values[name]
                return 0 if sizes is None else sizes[self._dimension(dimension)]
        raise AssertionError(ast.dump(node))


class OpExpression:
    """A value of ops, arithmetic and comparisons; names and ops are checked when it is made.

    `names` are those of its values. Raises ExpressionError, which names the nearest op for one that
    nobody has defined.
    """

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self.text, self.known = text, names
        self.tree = _parse(_QUALIFIED.sub(r'__op__("\1::\2")', text))
        self.names = {
            n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name) and n.id != "__op__"
        }
        self._ops: dict[str, Any] = {}
        self._check(self.tree)

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Its value, of those by name."""
        return self._value(self.tree, values)

    def _check(self, node: ast.expr) -> None:
        match node:
            case ast.Constant(value=int() | float() | bool() | None):
                return
            case ast.Name(id=name):
                if name not in self.known:
                    there = ", ".join(self.known)
                    raise ExpressionError(f"{self.text!r}: there is no {name} here, only {there}")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                self._check(left)
                self._check(right)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
                self._check(left)
                self._check(right)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                self._check(operand)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                for element in elements:
                    self._check(element)
            case ast.Call(
                func=ast.Call(func=ast.Name(id="__op__"), args=[ast.Constant(value=str(name))])
            ):
                self._ops[name] = find_op(name)
                for argument in [*node.args, *(k.value for k in node.keywords)]:
                    self._check(argument)
            case _:
                shown = _written(node)
                raise ExpressionError(
                    f"{self.text!r}: {shown} is neither a name, a number, arithmetic nor a call of "
                    "an op by its qualified name, as in aten::relu(x)"
                )

    def _value(self, node: ast.expr, values: Mapping[str, Any]) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return values[name]
            case ast.BinOp(left=left, op=op, right=right):
                return _BINARY[type(op)](self._value(left, values), self._value(right, values))
            case ast.Compare(left=left, ops=[compare], comparators=[right]):
                both = self._value(left, values), self._value(right, values)
                return _COMPARE[type(compare)](*both)
            case ast.UnaryOp(operand=operand):
                return -self._value(operand, values)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [self._value(element, values) for element in elements]
            case ast.Call(func=ast.Call(args=[ast.Constant(value=str(name))])):
                given = [self._value(argument, values) for argument in node.args]
                named = {k.arg: self._value(k.value, values) for k in node.keywords if k.arg}
                return self._ops[name](*given, **named)
        raise AssertionError(ast.dump(node))


def _written(node: ast.expr) -> str:
    return re.sub(r"__op__\('([\w:.]+)'\)", r"\1", ast.unparse(node))


def find_op(name: str) -> Any:
    """The op of a qualified name (`aten::add`, `aten::add.Tensor`). Raises ExpressionError, naming
    the nearest, for one that there is not."""
    space, _, rest = name.partition("::")
    try:
        return functools.reduce(getattr, rest.split("."), getattr(torch.ops, space))
    except AttributeError:
        every = {op.partition(".")[0] for op in torch._C._dispatch_get_all_op_names()}
        raise ExpressionError(f"there is no op {name}{nearest(name, every)}") from None
