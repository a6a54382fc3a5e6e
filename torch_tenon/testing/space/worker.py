"""The process that runs calls: one request a line, one answer a line, both JSON.

A request has `cases`, which run together. An answer has for each `failure`, its kind and what is
wrong, or None, and `refused`, the error's type where the CPU raises one.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import stat
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from torch_tenon.testing.fuzz.worker import PlanFailures, forget_errors
from torch_tenon.testing.space.asking import ON_CPU
from torch_tenon.testing.space.case import Case
from torch_tenon.testing.space.constraints import APPROXIMATE, FIRST_ALONE
from torch_tenon.testing.space.judgement import Finding, Judge
from torch_tenon.testing.space.ops import base_name, named
from torch_tenon.testing.space.running import (
    GRAPHS,
    INVALID,
    MODES,
    Outcome,
    run,
    run_as_graph,
    run_on_device,
    too_large,
)
from torch_tenon.testing.space.undefined import evidence

# Address space beyond what a process starts with: what a call asks for beyond it is refused, on the
# CPU and here.
_MOST = 64 << 30


@dataclass
class Answer:
    """What became of a case: `failure`, kind and text; `refused`, the CPU's error; who judges.
    `excused`: PyTorch's tracing alone is what went wrong."""

    failure: list[str] | None = None
    excused: bool = False
    refused: str = ""
    judges: dict[int, Judge] = field(default_factory=dict)


class Runner:
    """Runs cases, and keeps what the logs say."""

    def __init__(self) -> None:
        self.failures = PlanFailures()
        logging.getLogger("torch_tenon.program").addHandler(self.failures)

    def answer(self, cases: list[Case]) -> list[Answer]:
        """What is wrong with each of some cases of one mode, which run together. One that the CPU
        refuses is not run if it was to be right."""
        answers = [self._on_cpu(case) for case in cases]
        chosen = [
            (case, a)
            for case, a in zip(cases, answers, strict=True)
            if a.judges and not (a.refused and case.data["right"])
        ]
        # What the CPU refuses would end a graph.
        alone = [pair for pair in chosen if pair[1].refused or len(cases) == 1]
        for pair in alone:
            self._on_device([pair])
        self._on_device([pair for pair in chosen if pair not in alone])
        return answers

    def _on_cpu(self, case: Case) -> Answer:
        if any(too_large(case, k) for k in set(MODES[case.mode][1])):
            return Answer(refused="a result of too many elements")
        _mark(ON_CPU)
        wanted = {k: run(case, "cpu", k) for k in sorted(set(MODES[case.mode][1]))}
        errors = {want.error for want in wanted.values()} - {""}
        if INVALID in errors:
            return Answer(refused=INVALID)
        for k, want in wanted.items():
            if want.warnings:  # those that come once in a process are nobody's after that
                want.warnings = run(case, "cpu", k).warnings
        drawn = torch.Tag.nondeterministic_seeded in named(case.op).tags or "empty" in case.op
        pointwise = torch.Tag.pointwise in named(case.op).tags
        judges = {
            k: Judge(
                want,
                partial(evidence, case, k),
                values=not drawn,
                signs=pointwise,
                approximate=base_name(named(case.op)).startswith(APPROXIMATE),
                first_alone=base_name(named(case.op)) in FIRST_ALONE,
                apart=base_name(named(case.op)).startswith("unsafe_"),
            )
            for k, want in wanted.items()
        }
        return Answer(refused=next(iter(errors), ""), judges=judges)

    def _on_device(self, pairs: list[tuple[Case, Answer]]) -> None:
        """Runs cases together, and those again alone with which something is wrong."""
        if not pairs:
            return
        _mark(f"the device runs {[case.op for case, _ in pairs]}")
        forget_errors()
        self.failures.found.clear()
        mode = pairs[0][0].mode
        graph, by_plan = mode in GRAPHS, mode not in ("reference", "direct")
        wrong: set[int] = set()
        for k, which, outcomes in run_on_device([case for case, _ in pairs]):
            # What calls that run together warn of is said where the first result is read.
            said = [text for got in outcomes for text in got.warnings]
            for i, got in enumerate(outcomes):
                got.warnings = said
                judge = pairs[i][1].judges[k]
                found = judge.find(got, graph=graph, by_plan=by_plan)
                if found and graph and len(pairs) == 1 and _tracing_alone(pairs[0], k, got, found):
                    pairs[i][1].excused, found = True, None
                if found and i not in wrong:
                    wrong.add(i)
                    pairs[i][1].failure = [found.kind, f"{mode}, {which}: {found.text}"]
            if len(wrong) == len(pairs):
                break
        if self.failures.found:
            text = f"{mode}: a window got no plan: {self.failures.found[0]}"
            for i in set(range(len(pairs))) - wrong:
                pairs[i][1].failure = ["no plan", text]
                wrong.add(i)
        if len(pairs) > 1 and wrong:
            self._one_by_one([pairs[i] for i in sorted(wrong)])

    def _one_by_one(self, pairs: list[tuple[Case, Answer]]) -> None:
        """Runs cases with which something is wrong in smaller groups, down to one."""
        before = [a.failure for _, a in pairs]
        for _, a in pairs:
            a.failure = None
        if len(pairs) > 3:
            half = len(pairs) // 2
            self._on_device(pairs[:half])
            self._on_device(pairs[half:])
        else:
            for pair in pairs:
                self._on_device([pair])
        if any(a.failure or a.excused for _, a in pairs):
            return  # what ends a graph, or a plan, is wrong with all that is in it
        for (_, a), failure in zip(pairs, before, strict=True):
            if failure:
                a.failure = [f"{failure[0]} beside other calls", failure[1]]


def _tracing_alone(pair: tuple[Case, Answer], k: int, got: Outcome, found: Finding) -> bool:
    """Whether PyTorch's tracing is what gives another error, or another structure of results: the
    same is wrong with a graph of the CPU's that runs op by op, as AOTAutograd has it or as Dynamo
    has. Wrong numbers are never excused."""
    if found.kind in ("value", "memory", "no error", "warning"):
        return False
    case, answer = pair
    _mark(ON_CPU)
    for backend in ("aot_eager", "eager"):
        for size, _, (other,) in run_as_graph([case], "cpu", backend):
            if size == k:
                alike = answer.judges[k].find(other, graph=True, by_plan=True)
                if alike is not None and alike.kind == found.kind and other.error == got.error:
                    return True
                break
    return False


def _mark(text: str) -> None:
    """Says on standard error, if that is a file, what comes now and nothing else."""
    if stat.S_ISREG(os.fstat(2).st_mode):
        os.ftruncate(2, 0)
        os.lseek(2, 0, os.SEEK_SET)
        os.write(2, f"{text}\n".encode())


def main() -> None:
    """Answers until the input ends."""
    # What a call prints, and what C code prints, must not be taken for an answer.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _MOST
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    torch.set_num_threads(1)
    logging.getLogger("torch_tenon").addHandler(logging.NullHandler())
    runner = Runner()
    for count, line in enumerate(sys.stdin):
        request = json.loads(line)
        cases = [Case(data) for data in request["cases"]]
        answers = runner.answer(cases)
        shown = [{"failure": a.failure, "refused": a.refused} for a in answers]
        print(json.dumps({"answers": shown}), file=out, flush=True)
        if count % 50 == 0:
            gc.collect()


if __name__ == "__main__":
    main()
