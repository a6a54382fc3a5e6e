"""A statement that fails late: what may come of it, and of all that depends on it.

The CPU raises at the call, and the program goes on. A device that computes later may raise there,
or wherever something is read that depends on the call, and nowhere else. So the CPU's run goes on
with something that stands for the failed result, and knows what to expect of each variable since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torch_tenon.testing.fuzz.memory import Extent, extent, is_whole, meets
from torch_tenon.testing.fuzz.operations import words
from torch_tenon.testing.fuzz.program import Statement

# They change more than contents: which variable has which tensor, its sizes, gradients. With
# something failed beside them they are left out, since a device that raises at the call would not
# do it, and one that raises later would have done it.
_STRUCTURAL = set(
    words(
        """
    swap set_ set_data resize_ resize_fill transpose_ unsqueeze_ backward backward_mean grad
    clear_grad sgd adamw
    """
    )
)
_REPLACES_MEMORY = set(words("resize_ resize_fill set_ set_data"))
# Their results do not depend on the contents of their operands; one that fails late has a stand-in
# (`Operation.instead`), which is an operation of its own.
_OF_SIZES_LATE = words("multinomial_of_zeros cholesky_of_zeros inv_of_zeros")
_OF_SIZES = {
    *words("zeros_like ones_like full_like new_zeros rand_zero"),
    *_OF_SIZES_LATE,
    *(f"{name}_not" for name in _OF_SIZES_LATE),
}
_OF_NUMBERS = set(words("isfinite isinf isnan"))
_OVERWRITES = set(words("fill_ zero_ copy_ copy_across foreach_zero_"))


@dataclass(frozen=True)
class Failure:
    """What a failed call left in a variable or in memory.

    `certain`: no read gives a value. `valued`: one that does gives the CPU's. `bound`: a variable
    has its tensor even so.
    """

    errors: frozenset[str]
    certain: bool = False
    valued: bool = False
    bound: bool = True


_NO_MEMORY = Failure(frozenset({"OutOfMemoryError"}), valued=True, bound=False)


def _both(found: Iterable[Failure]) -> Failure | None:
    failures = list(found)
    if not failures:
        return None
    return Failure(
        frozenset().union(*(f.errors for f in failures)),
        any(f.certain for f in failures),
        all(f.valued for f in failures),
        all(f.bound for f in failures),
    )


@dataclass(frozen=True)
class Failed:
    """In an observation of the CPU: what the device may show there, which may be nothing.

    `shows`: it must show one of the errors, since a value would be one of nothing.
    """

    failure: Failure
    shows: bool
    value: Any = None

    def allows(self, error: str) -> bool:
        """Whether an exception of this type may come."""
        if error in self.failure.errors or (error == "NameError" and not self.failure.bound):
            return True
        # Of contents that are anybody's guess come shapes that are.
        return not (self.failure.certain or self.failure.valued)


@dataclass
class Course:
    """What a run on the CPU tells one on the device, by numbers of lines."""

    unsure: set[int] = field(default_factory=set)  # they may raise, and leave no result then
    resultless: set[int] = field(default_factory=set)  # nobody is to see their results
    left_out: set[int] = field(default_factory=set)
    one_by_one: set[str] = field(default_factory=set)  # blocks whose threads touch the same


@dataclass
class _Touched:
    """What the statements of a thread read, and what they write."""

    names: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)
    memory: list[Extent] = field(default_factory=list)
    written: list[Extent] = field(default_factory=list)

    def disturbs(self, other: _Touched) -> bool:
        """Whether it writes what the other one looks at."""
        return bool(self.bound & (other.names | other.bound)) or any(
            meets(a, b) for a in self.written for b in other.memory
        )


class Judge:
    """Runs statements on the CPU and says what they may do elsewhere."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope
        self.course = Course()
        self._names: dict[str, Failure] = {}
        # The storages are kept, so that no other gets their memory.
        self._memory: dict[int, tuple[torch.UntypedStorage, Failure]] = {}
        self._errors: frozenset[str] = frozenset()  # those that may be pending
        self._limited = False
        self._leaves = False  # whether there can be a graph of autograd
        # What DLPack has given away: the CPU frees it with the memory of the tensor that gave it.
        self._given_away: list[torch.UntypedStorage] = []
        self._threads: dict[str, _Touched] = {}
        self._block = ""

    def known(self, name: str) -> Failure | None:
        """What failed in a variable."""
        found = [self._names[name]] if name in self._names else []
        value = self.scope.get(name)
        return _both([*found, *self._in_memory(value)])

    def _in_memory(self, value: Any) -> list[Failure]:
        if not isinstance(value, torch.Tensor):
            return []
        place = extent(value)
        return [f for storage, f in self._memory.values() if meets(extent(storage), place)]

    def final(self, name: str, value: Any) -> Any:
        """What to expect of a variable at the end, of which this is the CPU's value."""
        failure = self.known(name)
        if failure is None:
            return value
        return Failed(failure, failure.certain and _has_elements(value), value)

    def step(self, line: int, s: Statement) -> Any:
        """Runs a statement; returns a Failed, or None where all is certain. Raises what it raises
        where that is certain."""
        definition = s.definition
        given = self._given(s)
        target = s.operands[definition.writes] if definition.writes is not None else None
        if (given is not None or definition.late) and (
            s.operation in _STRUCTURAL or (target is not None and self._leaves)
        ):
            # A write counts as a version that autograd looks at, whether or not it was made.
            self.course.left_out.add(line)
            return None
        if target is not None and self._is_given_away(s, target):
            self.course.left_out.add(line)
            return None
        if s.block:
            self._touch(s, target)
        if s.operation.startswith("dlpack"):
            operand = self.scope.get(s.operands[0])
            if isinstance(operand, torch.Tensor):
                self._given_away.append(operand.untyped_storage())
        dropped = False
        try:
            s.execute(self.scope, line)
        except (Exception, KeyboardInterrupt) as error:
            name = type(error).__name__
            if definition.late and (definition.instead is None or self._stand_in(line, s)):
                self._errors |= {name}
                failure = Failure(frozenset({name}), certain=True, bound=False)
                given = failure if given is None else _both([given, failure])
            elif given is not None:
                given = replace(given, errors=given.errors | {name})
                dropped = True
            else:
                self._forget(s.given())
                raise
        self._leaves |= s.operation == "leaf"
        if s.operation == "del":
            self._names.pop(s.operands[0], None)
        if s.operation in ("limit", "unlimit"):
            self._limited = s.operation == "limit"
            self._errors |= _NO_MEMORY.errors if self._limited else frozenset()
        if given is None:
            self._done(s, target)
            return None
        self.course.unsure.add(line)
        if s.result is not None and dropped:
            self._forget(s.result)
            self.course.resultless.add(line)
        self._fails(s, target, given)
        asks = definition.asks or definition.reads
        elements = all(_has_elements(self.scope.get(n)) for n in s.variables())
        return Failed(given, shows=given.certain and asks and elements)

    def _is_given_away(self, s: Statement, target: str) -> bool:
        if s.operation not in _REPLACES_MEMORY and not s.given():
            return False
        t = self.scope.get(target)
        return isinstance(t, torch.Tensor) and any(
            t.untyped_storage()._cdata == storage._cdata for storage in self._given_away
        )

    def _given(self, s: Statement) -> Failure | None:
        """What failed before in what a statement looks at."""
        definition = s.definition
        named = {n: f for n in s.variables() if (f := self.known(n)) is not None}
        if s.operation in _OVERWRITES and definition.writes is not None and not self._limited:
            target = s.operands[definition.writes]
            once = set(named) == {target} and s.operands.count(target) == 1
            if once and target not in self._names and self._heals(target):
                return None
        found = list(named.values())
        if self._limited and s.operation not in ("limit", "unlimit"):
            found.append(_NO_MEMORY)
        if definition.waits and self._errors:
            found.append(Failure(self._errors, valued=True))
        return _both(found)

    def _heals(self, name: str) -> bool:
        """Whether nothing of what failed is left when all of a tensor is written."""
        t = self.scope[name]
        here = extent(t)
        return is_whole(t) and all(
            f.bound and here[0] <= extent(storage)[0] and extent(storage)[1] <= here[1]
            for storage, f in self._memory.values()
            if meets(extent(storage), here)
        )

    def _stand_in(self, line: int, s: Statement) -> bool:
        try:
            s.execute(self.scope, line, instead=True)
        except Exception:
            return False  # no statement that fails late: it is wrong in other ways
        return True

    def _done(self, s: Statement, target: str | None) -> None:
        """Notes what a statement did that is certain."""
        if s.result is not None:
            self._names.pop(s.result, None)
        if (
            s.operation in _OVERWRITES
            and target is not None
            and self._in_memory(self.scope[target])
        ):
            here = extent(self.scope[target])
            for key, (storage, _) in list(self._memory.items()):
                if meets(extent(storage), here):
                    del self._memory[key]

    def _is_finite(self, s: Statement) -> bool:
        """Whether a statement asks it of whole numbers, which are."""
        operand = self.scope.get(s.operands[0]) if s.operation in _OF_NUMBERS else None
        if not isinstance(operand, torch.Tensor):
            return False
        return not (operand.dtype.is_floating_point or operand.dtype.is_complex)

    def _fails(self, s: Statement, target: str | None, given: Failure) -> None:
        """Notes what a statement did that may have failed."""
        if s.result in self.scope:
            found = replace(given, bound=False)
            if s.operation in _OF_SIZES or self._is_finite(s):
                found = replace(found, certain=False, valued=True)
            self._names[s.result] = found
        if target is None or not isinstance(self.scope.get(target), torch.Tensor):
            self._forget(s.given())
            return
        # Whether it was written is not known, nor by how much.
        storage = self.scope[target].untyped_storage()
        left = Failure(given.errors, bound=not s.given())
        key = storage._cdata
        if key in self._memory:
            left = _both([left, self._memory[key][1]]) or left
        self._memory[key] = (storage, left)
        for name, f in self._names.items():
            value = self.scope.get(name)
            if isinstance(value, torch.Tensor) and meets(extent(value), extent(storage)):
                self._names[name] = replace(f, certain=False, valued=False)
        self._forget(s.given())

    def _forget(self, name: str) -> None:
        self.scope.pop(name, None)
        self._names.pop(name, None)

    def _touch(self, s: Statement, target: str | None) -> None:
        """Notes what a statement on a thread looks at, and whether another thread minds."""
        if s.block != self._block:
            self._block, self._threads = s.block, {}
        mine = self._threads.setdefault(s.thread, _Touched())
        tensors = {n: t for n in s.variables() if isinstance(t := self.scope.get(n), torch.Tensor)}
        mine.names |= s.variables()
        mine.bound |= {s.result} if s.result is not None else set()
        mine.bound |= {s.operands[0]} if s.operation == "del" else set()
        mine.memory += [extent(t) for t in tensors.values()]
        mine.written += [extent(t) for n, t in tensors.items() if n == target]
        others = [t for name, t in self._threads.items() if name != s.thread]
        if others and (
            s.operation in _STRUCTURAL or any(mine.disturbs(o) or o.disturbs(mine) for o in others)
        ):
            self.course.one_by_one.add(s.block)


def _has_elements(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.numel() > 0
