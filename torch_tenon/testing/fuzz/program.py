"""A random program: statements that are data, printed as Python and run on any device.

A program is valid by what the CPU makes of it: an exception is a result like any other, and the
statements after it run. `run` gives the observations, in order; `sensitivity` says by how much they
may differ.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_tenon.testing.fuzz.operations import NAMESPACE, OPERATIONS, Operation

_VARIABLE = re.compile(r"[a-z]\d+$")
_WORDS = {"D0", "D1", "H"}


@dataclass(frozen=True)
class Statement:
    """One line: an operation with operands, which are source, and the variable for its result."""

    operation: str
    operands: tuple[str, ...] = ()
    result: str | None = None
    no_grad: bool = False

    @property
    def definition(self) -> Operation:
        """What the operation is."""
        return OPERATIONS[self.operation]

    def source(self) -> str:
        """The line."""
        text = self.definition.source.format(*self.operands)
        if self.result is not None:
            text = f"{self.result} = {text}"
        return f"with torch.no_grad(): {text}" if self.no_grad else text

    def spoiled(self) -> str:
        """The variable whose contents are anybody's guess once the statement raised: the CPU gives
        an `out=` its new sizes before it looks at what else is wrong. Empty: none."""
        return self.operands[0] if "out={0}" in self.definition.source else ""

    def variables(self) -> set[str]:
        """The variables that its operands name."""
        return {w for x in self.operands for w in re.findall(r"\b[a-z]\d+\b", x)}


@dataclass
class Program:
    """Statements in order."""

    statements: list[Statement] = field(default_factory=list)

    def to_json(self) -> list[list[Any]]:
        """Lists of strings, for `from_json`."""
        return [[s.operation, list(s.operands), s.result, s.no_grad] for s in self.statements]

    @staticmethod
    def from_json(data: Any) -> Program:
        """A program from data. Raises ValueError for what is no program, so that data of others
        can do no more than the operations do."""
        statements = []
        for operation, operands, result, no_grad in data:
            if operation not in OPERATIONS:
                raise ValueError(f"no operation {operation!r}")
            if result is not None and not _VARIABLE.match(result):
                raise ValueError(f"no variable: {result!r}")
            for x in operands:
                _check_operand(x)
            statements.append(Statement(operation, tuple(operands), result, bool(no_grad)))
        return Program(statements)

    def source(
        self,
        devices: tuple[str, str, str] = ("tenon:0", "tenon:1", "cpu"),
        raising: Collection[int] = (),
    ) -> str:
        """A script that does what `run` does and prints what `run` observes; `raising`: the lines
        that raise."""
        used = {s.operation for s in self.statements}
        text = "\n".join(s.source() for s in self.statements)
        lines = ["import torch", "import torch.nn.functional as F"]
        functions = [n for n in ("made", "places", "tame") if f"{n}(" in text]
        if functions:
            names = ", ".join(functions)
            lines.append(f"from torch_tenon.testing.fuzz.operations import {names}")
        if "commit" in used:
            lines.append("from torch_tenon._C import commit_all as commit")
        for name, device in zip(("D0", "D1", "H"), devices, strict=True):
            if re.search(rf"\b{name}\b", text):
                lines.append(f'{name} = torch.device("{device}")')
        lines.append("")
        live: dict[str, None] = {}
        for k, s in enumerate(self.statements):
            line = f"print({s.operands[0]})" if s.definition.reads else s.source()
            if k in raising:
                line = f"try: {line}\nexcept Exception as error: print(type(error))"
                live.pop(s.spoiled(), None)
            elif s.operation == "del":
                live.pop(s.operands[0], None)
            elif s.result is not None:
                live[s.result] = None
            lines.append(line)
        lines.append(f"for x in [{', '.join(live)}]: print(x)")
        return "\n".join(lines) + "\n"


def _check_operand(text: Any) -> None:
    if not isinstance(text, str):
        raise ValueError(f"no operand: {text!r}")
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        # Words inside of quotes, and the empty bounds of a slice.
        if text == "":
            return
        raise ValueError(f"no operand: {text!r}") from None
    for node in ast.walk(tree.body):
        if isinstance(node, ast.Name):
            if not (_VARIABLE.match(node.id) or node.id in _WORDS or node.id in _PLAIN_WORDS):
                raise ValueError(f"no operand: {text!r}")
        elif isinstance(node, ast.Attribute):
            if not (isinstance(node.value, ast.Name) and node.value.id == "torch"):
                raise ValueError(f"no operand: {text!r}")
            if not isinstance(getattr(torch, node.attr, None), torch.dtype | float):
                raise ValueError(f"no operand: {text!r}")
        elif not isinstance(
            node,
            ast.Constant | ast.Tuple | ast.List | ast.UnaryOp | ast.USub | ast.Load,
        ):
            raise ValueError(f"no operand: {text!r}")


_PLAIN_WORDS = {"torch", "floor", "trunc"}


@dataclass
class Observation:
    """What a program showed at a place: a tensor (on the host), a number or an exception's type."""

    where: str
    value: Any


Perturb = Callable[[torch.Tensor, bool], None]


def run(
    program: Program,
    devices: Mapping[str, torch.device],
    perturb: Perturb | None = None,
    commit: Callable[[], None] = lambda: None,
) -> list[Observation]:
    """Runs a program. `devices` says what D0, D1 and H are. `perturb` is called with each tensor
    that a statement computed, and whether its numbers are exact."""
    scope: dict[str, Any] = {**NAMESPACE, **devices, "commit": commit}
    seen: list[Observation] = []
    torch.manual_seed(0)
    for k, s in enumerate(program.statements):
        try:
            if s.definition.reads:
                seen.append(Observation(f"line {k}", _observed(scope[s.operands[0]])))
                continue
            exec(compile(s.source(), f"<line {k}>", "exec"), scope)
        except Exception as error:  # an exception is a result
            seen.append(Observation(f"line {k}", type(error).__name__))
            scope.pop(s.spoiled(), None)
            del error
            continue
        if perturb is not None:
            _perturb(s, scope, perturb)
    for name in sorted(n for n in scope if _VARIABLE.match(n)):
        value = scope[name]
        seen.append(Observation(name, _observed(value)))
        if (grad := _grad(value)) is not None:
            seen.append(Observation(f"{name}.grad", _observed(grad)))
    return seen


def _grad(value: Any) -> torch.Tensor | None:
    try:
        return value.grad if isinstance(value, torch.Tensor) and value.is_leaf else None
    except RuntimeError:  # a view whose history autograd cannot tell any more
        return None


def _observed(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value


def _perturb(s: Statement, scope: dict[str, Any], perturb: Perturb) -> None:
    definition = s.definition
    if s.operation.startswith("backward"):
        for name in [n for n in scope if _VARIABLE.match(n)]:
            if (grad := _grad(scope[name])) is not None:
                perturb(grad, False)
    if definition.view:
        return
    changed = s.operands[definition.writes] if definition.writes is not None else s.result
    if isinstance(changed, str) and isinstance(scope.get(changed), torch.Tensor):
        perturb(scope[changed], definition.exact)


def dump(program: Program) -> str:
    """A program as a line of JSON."""
    return json.dumps(program.to_json())
