"""A random program: statements that are data, printed as Python and run on any device.

A program is valid by what the CPU makes of it: an exception is a result like any other, and the
statements after it run. `running.py` runs it; `failing.py` says what may come of a statement that
fails late.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from torch_tenon.testing.fuzz import surroundings
from torch_tenon.testing.fuzz.operations import FUNCTIONS, OPERATIONS, Operation
from torch_tenon.testing.fuzz.surroundings import CONTEXTS

VARIABLE = re.compile(r"[a-z]\d+$")
_THREAD = re.compile(r"\d+\.\d+$")
_WORDS = {"D0", "D1", "H"}


@dataclass(frozen=True)
class Statement:
    """One line: an operation with operands, which are source, and the variable for its result.

    `around`: what is in force, by the names of `CONTEXTS`. `thread`: empty for the main one, or
    "block.number": neighbours of one block with the same number run on a thread of their own, at
    the same time as those with other numbers, and all end before what follows the block.
    """

    operation: str
    operands: tuple[str, ...] = ()
    result: str | None = None
    no_grad: bool = False
    around: tuple[str, ...] = ()
    thread: str = ""

    @property
    def definition(self) -> Operation:
        """What the operation is."""
        return OPERATIONS[self.operation]

    @property
    def block(self) -> str:
        """The block of threads that it belongs to; empty: none."""
        return self.thread.partition(".")[0]

    def source(self, instead: bool = False, show: str = "print({})") -> str:
        """The line. `instead`: what stands for it where it fails; `show`: what becomes of a value
        that it reads."""
        definition = self.definition
        text = (instead and definition.instead) or definition.source
        text = text.format(*self.operands)
        if definition.reads:
            text = show.format(text)
        if self.result is not None:
            text = f"{self.result} = {text}"
        contexts = ["torch.no_grad()"] if self.no_grad else []
        contexts += [CONTEXTS[name] for name in self.around]
        return f"with {', '.join(contexts)}: {text}" if contexts else text

    def execute(self, scope: dict[str, Any], line: int, instead: bool = False) -> None:
        """Runs the line; the scope has a function `show` of a line's number and a value."""
        text = self.source(instead, f"show({line}, {{}})")
        exec(compile(text, f"<line {line}>", "exec"), scope)

    def given(self) -> str:
        """The variable of an `out=`; empty: none. Once the statement raised, it may be anything:
        the CPU gives it its new sizes before it looks at what else is wrong."""
        return self.operands[0] if "out={0}" in self.definition.source else ""

    def variables(self) -> set[str]:
        """The variables that its operands name."""
        return {w for x in self.operands for w in re.findall(r"\b[a-z]\d+\b", x)}

    def data(self) -> list[Any]:
        """Strings and lists of strings, for `from_data`."""
        beside = [list(self.around), self.thread] if self.around or self.thread else []
        return [self.operation, list(self.operands), self.result, self.no_grad, *beside]

    @staticmethod
    def from_data(
        operation: str,
        operands: list[str],
        result: str | None,
        no_grad: bool,
        around: Collection[str] = (),
        thread: str = "",
    ) -> Statement:
        """A statement from data. Raises ValueError for what is none."""
        if operation not in OPERATIONS:
            raise ValueError(f"no operation {operation!r}")
        if result is not None and not VARIABLE.match(result):
            raise ValueError(f"no variable: {result!r}")
        if unknown := [name for name in around if name not in CONTEXTS]:
            raise ValueError(f"no context: {unknown[0]!r}")
        if thread and not _THREAD.match(thread):
            raise ValueError(f"no thread: {thread!r}")
        for x in operands:
            _check_operand(x)
        return Statement(operation, tuple(operands), result, bool(no_grad), tuple(around), thread)


@dataclass
class Program:
    """Statements in order."""

    statements: list[Statement] = field(default_factory=list)

    def to_json(self) -> list[list[Any]]:
        """Lists of strings, for `from_json`."""
        return [s.data() for s in self.statements]

    @staticmethod
    def from_json(data: Any) -> Program:
        """A program from data. Raises ValueError for what is no program, so that data of others
        can do no more than the operations do."""
        return Program([Statement.from_data(*line) for line in data])

    def blocks(self) -> Iterator[tuple[str, list[int]]]:
        """The lines in stretches: those of a block of threads, or of none."""
        for block, lines in groupby(
            range(len(self.statements)), lambda k: self.statements[k].block
        ):
            yield block, list(lines)

    def by_thread(self, lines: list[int]) -> list[list[int]]:
        """The lines of a block, those of each thread in order."""
        found: dict[str, list[int]] = {}
        for k in lines:
            found.setdefault(self.statements[k].thread, []).append(k)
        return list(found.values())

    def source(
        self,
        devices: tuple[str, str, str] = ("tenon:0", "tenon:1", "cpu"),
        raising: Collection[int] = (),
    ) -> str:
        """A script that does what a run does and prints what it observes; `raising`: the lines that
        raise, or may."""
        text = "\n".join(s.source() for s in self.statements)
        threads = any(s.thread for s in self.statements)
        lines = ["import torch", "import torch.nn.functional as F"]
        for module, functions in (
            ("operations", FUNCTIONS),
            ("surroundings", [*surroundings.NAMESPACE, *(["together"] if threads else [])]),
        ):
            used = [n for n in functions if re.search(rf"\b{n}\(", text) or n == "together"]
            if used:
                names = ", ".join(used)
                lines.append(f"from torch_tenon.testing.fuzz.{module} import {names}")
        if any(s.operation in ("commit", "interrupted_commit") for s in self.statements):
            lines.append("from torch_tenon._C import commit_all as commit")
        for name, device in zip(("D0", "D1", "H"), devices, strict=True):
            if re.search(rf"\b{name}\b", text):
                lines.append(f'{name} = torch.device("{device}")')
        lines.append("")
        for block, numbers in self.blocks():
            if not block:
                lines += [self._line(k, raising) for k in numbers]
                continue
            calls = []
            for stretch in self.by_thread(numbers):
                name = f"thread_{self.statements[stretch[0]].thread.replace('.', '_')}"
                shared = sorted(
                    {n for k in stretch for n in self.statements[k].variables()}
                    | {n for k in stretch if (n := self.statements[k].result)}
                )
                body = [f"global {', '.join(shared)}"] if shared else []
                body += [self._line(k, raising) for k in stretch]
                lines.append(_indented(f"def {name}():", "\n".join(body)))
                calls.append(name)
            lines.append(f"together({', '.join(calls)})")
        live: dict[str, None] = {}
        for k, s in enumerate(self.statements):
            if k in raising:
                live.pop(s.given(), None)
            elif s.operation == "del":
                live.pop(s.operands[0], None)
            if s.result is not None:
                live[s.result] = None
        if any(s.operation == "limit" for s in self.statements):
            lines.append("unlimit(D0)")
        if raising:
            lines.append(f"for name in {list(live)}:")
            lines.append("    try: print(name, eval(name))")
            lines.append("    except Exception as error: print(name, type(error))")
        else:
            lines.append(f"for x in [{', '.join(live)}]: print(x)")
        return "\n".join(lines) + "\n"

    def _line(self, k: int, raising: Collection[int]) -> str:
        line = self.statements[k].source()
        if k not in raising:
            return line
        return f"{_indented('try:', line)}\nexcept BaseException as error: print(type(error))"


def _indented(head: str, text: str) -> str:
    return "\n".join([head, *(f"    {line}" for line in text.splitlines())])


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
            if not (VARIABLE.match(node.id) or node.id in _WORDS or node.id in _PLAIN_WORDS):
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
    """What a program showed at a place: a tensor (on the host), a number, an exception's type, or
    (on the CPU) a `Failed`."""

    where: str
    value: Any


Perturb = Callable[[torch.Tensor, bool], None]


def dump(program: Program) -> str:
    """A program as a line of JSON."""
    return json.dumps(program.to_json())
