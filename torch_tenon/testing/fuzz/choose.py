"""Choosing operands: what there is, what fits beside what, and adding a statement."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

import torch

from torch_tenon.testing.fuzz.compare import CPU
from torch_tenon.testing.fuzz.failing import Judge
from torch_tenon.testing.fuzz.operations import OPERATIONS
from torch_tenon.testing.fuzz.program import Statement
from torch_tenon.testing.fuzz.running import NAMESPACE

DTYPES = ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
MOST_ELEMENTS = 6000
_KEEP_ERROR = 0.15  # how often a statement that raises stays


class Nothing(Exception):
    """No operand fits: another kind of statement is chosen."""


class Chooser:
    """The program so far, and what its variables are on the CPU."""

    def __init__(self, rng: random.Random, length: int) -> None:
        self.rng = rng
        self.length = length
        self.statements: list[Statement] = []
        # Where the result of each goes, if not to its operands, and where those are.
        self.places: list[tuple[str | None, list[str]]] = []
        self.scope: dict[str, object] = {**NAMESPACE, **CPU}
        self.scope |= {"commit": lambda: None, "show": lambda line, value: None}
        self.judge = Judge(self.scope)
        self.around: tuple[str, ...] = ()  # of the statements that are added
        self.thread = ""
        self.where: dict[str, str] = {}  # which device a variable is on
        self.count = 0
        # Programs differ in character: most stay with a few dtypes and shapes, so that operands
        # fit each other and calls repeat.
        self.dtypes = rng.sample(DTYPES, rng.randint(1, 4)) + ["float32"] * 3
        self.sizes = [rng.choice([1, 2, 3, 4, 5, 8, 16, 17, 33]) for _ in range(3)]
        if rng.random() < 0.15:
            self.sizes[0] = rng.choice([0, 64, 130])
        self.devices = ["D0"] * 5 + (["D1"] * 2 if rng.random() < 0.4 else [])

    # What is there

    def tensor(self, name: str) -> torch.Tensor:
        value = self.scope[name]
        assert isinstance(value, torch.Tensor)
        return value

    def homes(self, operands: Sequence[str]) -> list[str]:
        """The devices of the tensors among operands, in their order; a Python number has none."""
        named = [n for x in operands for n in re.findall(r"\w+", x) if n in self.where]
        return [self.where[n] for n in named if isinstance(self.scope.get(n), torch.Tensor)]

    def names(self, fits: Callable[[torch.Tensor], bool] = lambda _: True) -> list[str]:
        return [
            n
            for n in self.where
            if isinstance(self.scope.get(n), torch.Tensor) and fits(self.tensor(n))
        ]

    def pick(self, fits: Callable[[torch.Tensor], bool] = lambda _: True) -> str:
        """A variable, rather a new one; mostly on a device."""
        found = self.names(fits)
        found = [n for n in found if self.where[n] != "H" or self.rng.random() < 0.1]
        if not found:
            raise Nothing
        return found[-1] if self.rng.random() < 0.4 else self.rng.choice(found)

    def beside(self, name: str, fits: Callable[[torch.Tensor], bool] = lambda _: True) -> str:
        """A variable that an op may take with `name`: on its device, or a number of the host's."""
        return self.choice(
            [
                n
                for n in self.names(fits)
                if self.where[n] == self.where[name]
                or (self.where[n] == "H" and self.tensor(n).dim() == 0)
            ]
        )

    def choice(self, found: list[str]) -> str:
        if not found:
            raise Nothing
        return self.rng.choice(found)

    def broadcastable(self, name: str, into: bool = False) -> Callable[[torch.Tensor], bool]:
        x = self.tensor(name)

        def fits(y: torch.Tensor) -> bool:
            try:
                shape = torch.broadcast_shapes(x.shape, y.shape)
            except RuntimeError:
                return False
            return shape == x.shape if into else shape.numel() <= MOST_ELEMENTS

        return fits

    def room(self, t: torch.Tensor) -> int:
        """How many elements of a tensor's dtype its storage holds. Nothing fits where that is more
        than it was made for: a kernel of the CPU leaves the memory that it worked in there."""
        base = t if t._base is None else t._base
        last = sum((n - 1) * k for n, k in zip(base.shape, base.stride(), strict=True))
        whole = (base.storage_offset() + last + 1 if base.numel() else 0) * base.element_size()
        if t.untyped_storage().nbytes() > whole:
            raise Nothing
        return t.untyped_storage().nbytes() // t.element_size()

    def dim(self, x: torch.Tensor) -> int:
        if x.dim() == 0:
            raise Nothing
        return self.rng.randrange(-x.dim(), x.dim())

    def number_text(self, like: torch.Tensor | None = None) -> str:
        """A Python number, or a variable that is one."""
        numbers = [n for n, v in self.scope.items() if n in self.where and type(v) is float]
        if numbers and self.rng.random() < 0.4:
            return self.rng.choice(numbers)
        integral = like is not None and not like.is_floating_point()
        kinds = ["2", "-1", "3", "0", "1", "True"] if integral and self.rng.random() < 0.8 else []
        return self.rng.choice(
            kinds or ["0.5", "2", "-1", "1.5", "0.1", "-0.25", "3", f"{self.rng.random():.3f}"]
        )

    def seed(self) -> str:
        return str(self.rng.randrange(1000))

    def shape(self) -> tuple[int, ...]:
        return tuple(
            self.rng.choice(self.sizes) for _ in range(self.rng.choice([0, 1, 2, 2, 2, 3]))
        )

    def dtype(self, among: list[str] | None = None) -> str:
        found = [d for d in self.dtypes if among is None or d in among] or among or self.dtypes
        return f"torch.{self.rng.choice(found)}"

    def bounds(self, size: int) -> tuple[str, str, str]:
        rng = self.rng
        start = rng.choice(["", "1", "0", "-2", str(size // 2)])
        stop = rng.choice(["", "", "-1", str(size)])
        return start, stop, rng.choice(["", "", "1", "2", "3"])

    # Adding a statement

    def add(
        self, operation: str, *operands: object, result: bool | str = True, place: str | None = None
    ) -> None:
        """Runs the statement on the CPU and keeps it, if it is to be kept."""
        rng = self.rng
        texts = tuple(str(x) for x in operands)
        homes = self.homes(texts)
        placed = (place, homes)
        name: str | None = None
        if isinstance(result, str):
            name = result
        elif result:
            reuse = [n for n in self.where if self.where[n] != "H"]
            name = rng.choice(reuse) if reuse and rng.random() < 0.12 else f"a{self.count}"
            self.count += 1
        if place is None:
            # A number of the host's beside a tensor of a device leaves the result there.
            place = next((h for h in homes if h != "H"), homes[0] if homes else "D0")
        writes = OPERATIONS[operation].writes
        gradients = any(self.tensor(n).requires_grad for n in self.names() if n in texts)
        no_grad = gradients and rng.random() < (0.5 if writes is not None else 0.1)
        statement = Statement(operation, texts, name, no_grad, self.around, self.thread)
        if not self.allowed(statement):
            return
        before = dict(self.scope)
        line = len(self.statements)
        try:
            self.judge.step(line, statement)
        except (Exception, KeyboardInterrupt) as error:  # whatever the CPU raises: see `running`
            always = isinstance(error, KeyboardInterrupt)
            if always or (not isinstance(error, NameError) and rng.random() < _KEEP_ERROR):
                self.statements.append(statement)
                self.places.append(placed)
                self.where.pop(statement.given(), None)
            elif statement.given() in before:
                self.scope[statement.given()] = before[statement.given()]
            return
        if line in self.judge.course.left_out:
            self.judge.course.left_out.discard(line)
            return
        made = self.scope.get(name) if name else None
        if isinstance(made, torch.Tensor) and made.numel() > MOST_ELEMENTS:
            self.scope.clear()
            self.scope.update(before)
            return
        self.statements.append(statement)
        self.places.append(placed)
        if name:
            self.where[name] = place
        for gone in [
            n for n in self.where if n not in self.scope and n in (name, statement.given())
        ]:
            self.where.pop(gone)

    def allowed(self, statement: Statement) -> bool:
        """Whether a statement may be added here."""
        return True

    def repeat(self) -> None:
        """The last few statements again, with other numbers: what a loop does."""
        count = self.rng.randint(2, 8)
        last = list(zip(self.statements[-count:], self.places[-count:], strict=True))
        for _ in range(self.rng.randint(1, 3)):
            renamed: dict[str, str] = {}
            for s, (place, homes) in last:
                operands = []
                for x in s.operands:
                    if x in renamed:
                        x = renamed[x]
                    elif "." in x and x.replace(".", "", 1).lstrip("-").isdigit():
                        x = f"{self.rng.random():.3f}"
                    operands.append(x)
                known = [n for n in operands if n.strip("[]") in self.where or n[:1] != "a"]
                # A name may stand for something else by now, on another device as well.
                if len(known) != len(operands) or self.homes(operands) != homes:
                    continue
                if s.result is None:
                    self.add(s.operation, *operands, result=False)
                else:
                    fresh = f"a{self.count}"
                    self.count += 1
                    self.add(s.operation, *operands, result=fresh, place=place)
                    if fresh in self.where and self.rng.random() < 0.8:
                        renamed[s.result] = fresh
