"""Running a random program, and what it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from torch_tenon.testing.fuzz import operations, surroundings
from torch_tenon.testing.fuzz.failing import Course, Judge
from torch_tenon.testing.fuzz.program import VARIABLE, Observation, Perturb, Program, Statement

NAMESPACE = {**operations.NAMESPACE, **surroundings.NAMESPACE}


def run(
    program: Program,
    devices: Mapping[str, torch.device],
    perturb: Perturb | None = None,
    commit: Callable[[], None] = lambda: None,
    course: Course | None = None,
) -> list[Observation]:
    """Runs a program; returns the observations, in order. `devices` says what D0, D1 and H are.
    `perturb` is called with each tensor that a statement computed, and whether its numbers are
    exact. `course`: what a run on the CPU told; without it the devices are the CPU."""
    if course is None:
        return judged(program, devices, perturb)[0]
    seen = _Seen()
    scope = _scope(devices, commit, seen)
    torch.manual_seed(0)
    try:
        for block, lines in program.blocks():
            if block and block not in course.one_by_one:
                parts = [
                    partial(_lines, program, p, scope, course, seen)
                    for p in program.by_thread(lines)
                ]
                surroundings.together(*parts)
            else:
                _lines(program, lines, scope, course, seen)
    finally:
        for name in ("D0", "D1"):
            surroundings.unlimit(devices[name])
    return [*seen.in_order(), *_final(scope, None)]


def judged(
    program: Program, devices: Mapping[str, torch.device], perturb: Perturb | None = None
) -> tuple[list[Observation], Course]:
    """Runs a program on the CPU; returns the observations, and what they tell other runs."""
    seen = _Seen()
    scope = _scope(devices, lambda: None, seen)
    judge = Judge(scope)
    torch.manual_seed(0)
    for k, s in enumerate(program.statements):
        try:
            failed = judge.step(k, s)
        except (Exception, KeyboardInterrupt) as error:  # an exception is a result
            seen[k] = type(error).__name__
            del error
            continue
        if failed is not None:
            seen[k] = replace(failed, value=seen.get(k))
        if perturb is not None and k not in judge.course.left_out:
            _perturb(s, scope, perturb)
    return [*seen.in_order(), *_final(scope, judge)], judge.course


class _Seen(dict[int, Any]):
    """What was seen at each line that shows something."""

    def show(self, line: int, value: Any) -> None:
        """What a statement calls that reads."""
        self[line] = observed(value)

    def in_order(self) -> list[Observation]:
        """As observations."""
        return [Observation(f"line {k}", self[k]) for k in sorted(self)]


def _scope(
    devices: Mapping[str, torch.device], commit: Callable[[], None], seen: _Seen
) -> dict[str, Any]:
    surroundings.forget()
    return {**NAMESPACE, **devices, "commit": commit, "show": seen.show}


def _lines(
    program: Program, lines: list[int], scope: dict[str, Any], course: Course, seen: _Seen
) -> None:
    for k in lines:
        s = program.statements[k]
        if k in course.left_out:
            continue
        try:
            s.execute(scope, k)
        except (Exception, KeyboardInterrupt) as error:  # an exception is a result
            seen[k] = type(error).__name__
            del error
            scope.pop(s.given(), None)
            if k in course.unsure:
                scope.pop(s.result or "", None)
        if k in course.unsure:
            scope.pop(s.given(), None)
        if k in course.resultless:
            scope.pop(s.result or "", None)


def _final(scope: dict[str, Any], judge: Judge | None) -> list[Observation]:
    found = []
    for name in sorted(n for n in scope if VARIABLE.match(n)):
        value = scope[name]
        shown = _safely_observed(value)
        found.append(Observation(name, shown if judge is None else judge.final(name, shown)))
        if (grad := _grad(value)) is not None:
            shown = _safely_observed(grad)
            shown = shown if judge is None else judge.final(name, shown)
            found.append(Observation(f"{name}.grad", shown))
    return found


def _grad(value: Any) -> torch.Tensor | None:
    try:
        return value.grad if isinstance(value, torch.Tensor) and value.is_leaf else None
    except RuntimeError:  # a view whose history autograd cannot tell any more
        return None


def observed(value: Any) -> Any:
    """A value that nothing changes any more."""
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value


def _safely_observed(value: Any) -> Any:
    try:
        return observed(value)
    except Exception as error:  # an exception is a result
        return type(error).__name__


def _perturb(s: Statement, scope: dict[str, Any], perturb: Perturb) -> None:
    definition = s.definition
    if s.operation.startswith("backward"):
        for name in [n for n in scope if VARIABLE.match(n)]:
            if (grad := _grad(scope[name])) is not None:
                perturb(grad, False)
    if definition.view:
        return
    changed = s.operands[definition.writes] if definition.writes is not None else s.result
    if isinstance(changed, str) and isinstance(scope.get(changed), torch.Tensor):
        perturb(scope[changed], definition.exact)
