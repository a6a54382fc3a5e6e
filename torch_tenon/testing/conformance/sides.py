"""Runs one computation on the CPU and on the device, and compares what came of it."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torch_tenon import config

from .accuracy import as_accurate
from .comparison import Comparison, Mismatch
from .memory import fill_free_memory
from .placement import Placement, tensors_in
from .randomness import check_distribution, draws
from .route import Maker, Work, work, worked_since

# Samples of a case whose distribution is compared; of all others only the reproducibility is.
DISTRIBUTIONS = 8


# Makes a computation ready on the copies of a placement; what it returns does it, once.
Prepare = Callable[[Placement], Callable[[], Any]]


@dataclass
class Run:
    """A computation made ready on one device."""

    placement: Placement
    call: Callable[[], Any]


@dataclass
class Outcome:
    """What a call gave, or the exception that it raised with its traceback."""

    value: Any = None
    error: Exception | None = None
    traceback: str = ""


class DeviceError(Mismatch):
    """The device raised and the CPU did not; carries the device's traceback."""

    def __init__(self, reason: str, message: str, text: str) -> None:
        super().__init__(reason, message)
        self.traceback = text


def attempt(call: Callable[[], Any]) -> Outcome:
    """Calls, and returns the exception instead of raising it."""
    try:
        return Outcome(call())
    except Exception as error:
        return Outcome(error=error, traceback=traceback.format_exc()[-6000:])


class Sides:
    """The CPU and the device under test, side by side, with what counts as the same answer.

    `values=False` compares metadata alone, for results that nobody initialised. `process` maps a
    result that is unique only up to a sign, a basis or an order to what is unique in it.
    """

    def __init__(self, device: str, comparison: Comparison, *, values: bool = True) -> None:
        self.device = device
        self.comparison = comparison
        self.values = values
        self.notes = comparison.notes
        self.made: Counter[Maker] = Counter()  # results by who computed them
        # Ops that the host ran by why: apart from windows, and in them.
        self.at_once: dict[str, dict[str, None]] = {}
        self.in_windows: dict[str, dict[str, None]] = {}
        self._distributions: dict[str, int] = {}

    def compare(
        self,
        prepare: Prepare,
        *,
        check: str,
        grad: bool = False,
        process: Callable[[Any], Any] | None = None,
        aliasing: bool = False,
        mutation: bool = True,
        must_raise: bool = True,
    ) -> Outcome:
        """Runs what `prepare` makes ready on both sides and raises Mismatch if they differ.

        `grad` places inputs with gradients; `aliasing` compares which inputs results are views of;
        `mutation` compares what the call wrote to inputs; `check` names what is counted together.
        Returns the CPU's outcome. When that is an error, the device has raised the same type,
        unless `must_raise` is false: then it was not run.
        """

        def make(device: str, *, wide: bool = False) -> Run:
            place = Placement(device, grad=grad, wide=wide)
            return Run(place, prepare(place))

        cpu = make("cpu")
        cpu_versions = [t._version for t in cpu.placement.tensors()]
        outcome, random = draws(lambda: attempt(cpu.call), cpu.placement.generators())
        if outcome.error is not None and not must_raise:
            return outcome
        counts = torch.device(self.device).type == "tenon"
        if counts and config.EXECUTE.read() != "reference":
            # The first call of its kind runs at once and teaches; only the next one is recorded.
            attempt(self._made_on_device(make).call)
        if counts:
            fill_free_memory()
        before = work() if counts else None
        under_test = self._made_on_device(make)
        versions = [t._version for t in under_test.placement.tensors()]
        actual = attempt(under_test.call)
        if outcome.error is not None or actual.error is not None:
            self._errors(actual, outcome)
            return outcome
        inputs = (under_test.placement.tensors(), cpu.placement.tensors())
        if not aliasing:
            inputs = ([], [])
        same_values = True
        try:
            self._results(actual.value, outcome.value, inputs, process)
        except Mismatch as mismatch:
            if mismatch.reason != "values differ":
                raise
            self.comparison.results(
                actual.value,
                outcome.value,
                actual_inputs=inputs[0],
                expected_inputs=inputs[1],
                values=False,
            )
            same_values = False
            if random:
                self._distribution(make, check)
            else:
                judge = attempt(make("cpu", wide=True).call)
                if judge.error or not as_accurate(actual.value, outcome.value, judge.value):
                    raise
                self.notes.add(f"rounding differs: {check}: {str(mismatch)[:200]}")
        finally:
            if before is not None:
                self._count(before)
        if random:
            self._reproducible(make)
        if mutation and same_values and self.values:
            self._mutation(under_test, versions, cpu, cpu_versions)
        return outcome

    def _count(self, before: Work) -> None:
        worked = worked_since(before)
        self.made[worked.maker] += 1
        for mine, found in (
            (self.at_once, worked.at_once),
            (self.in_windows, worked.in_windows),
        ):
            for why, ops in found.items():
                mine.setdefault(why, {}).update(dict.fromkeys(ops))

    def _made_on_device(self, make: Callable[[str], Run]) -> Run:
        try:
            return make(self.device)
        except Exception as error:
            text = traceback.format_exc()[-6000:]
            kind = f"inputs cannot be moved: {type(error).__name__}"
            raise DeviceError(kind, str(error), text) from error

    def _errors(self, actual: Outcome, expected: Outcome) -> None:
        mine, theirs = actual.error, expected.error
        if mine is None:
            raise Mismatch("does not raise", f"the CPU raises {type(theirs).__name__}: {theirs}")
        if theirs is None:
            raise DeviceError(f"raises {type(mine).__name__}", str(mine), actual.traceback)
        if type(mine) is not type(theirs):
            message = f"{mine}; the CPU raises {type(theirs).__name__}: {theirs}"
            reason = f"raises {type(mine).__name__}, not {type(theirs).__name__}"
            raise DeviceError(reason, message, actual.traceback)
        if str(mine) != str(theirs):
            lines = [(str(error).splitlines() or [""])[0] for error in (mine, theirs)]
            self.notes.add(f"message differs: {lines[0]:.120}, CPU {lines[1]:.120}")

    def _results(
        self,
        actual: Any,
        expected: Any,
        inputs: tuple[list[torch.Tensor], list[torch.Tensor]],
        process: Callable[[Any], Any] | None,
    ) -> None:
        try:
            self.comparison.results(
                actual,
                expected,
                actual_inputs=inputs[0],
                expected_inputs=inputs[1],
                values=self.values,
            )
        except Mismatch as mismatch:
            if process is None or mismatch.reason != "values differ":
                raise
            self.comparison.results(process(actual), process(expected), where="processed result")

    def _mutation(
        self, under_test: Run, versions: list[int], cpu: Run, cpu_versions: list[int]
    ) -> None:
        for index, (mine, theirs) in enumerate(
            zip(under_test.placement.tensors(), cpu.placement.tensors(), strict=True)
        ):
            written = mine._version != versions[index] or theirs._version != cpu_versions[index]
            if written:
                self.comparison.results(mine, theirs, where=f"input {index} after the call")

    def _distribution(self, make: Callable[[str], Run], check: str) -> None:
        done = self._distributions.get(check, 0)
        if done < DISTRIBUTIONS:
            self._distributions[check] = done + 1
            check_distribution(lambda: make(self.device).call(), lambda: make("cpu").call())

    def _reproducible(self, make: Callable[[str], Run]) -> None:
        results = []
        for _ in range(2):
            torch.manual_seed(20)
            results.append(tensors_in(make(self.device).call()))
        for index, (one, other) in enumerate(zip(*results, strict=True)):
            if one.layout != torch.strided or not self.values:
                continue
            # The draws are the same bit for bit; a plan that takes over rounds in another order.
            try:
                self.comparison.values(one, other, f"result {index}")
            except Mismatch:
                raise Mismatch(
                    "seed not obeyed", f"result {index} differs after the same torch.manual_seed"
                ) from None
