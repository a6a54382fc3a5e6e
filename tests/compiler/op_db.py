"""PyTorch's op database through `torch.compile(backend="tenon")`, against PyTorch's CPU.

    python -m tests.compiler.op_db [--samples N] [--dtype float32 ...] [--only NAME ...]
                                   [--part K/N] [--json FILE]
    python -m tests.compiler.op_db --summarise FILE ...

A case is one entry of the database with one dtype. Each of its samples is compiled on tensors of
the device, forward and (where the CPU has one) backward, and compared as the conformance suite
compares. A sample that Dynamo cannot trace on the CPU either does not count. Prints what is wrong,
what was not traced and why, and which ops became calls of PyTorch's kernels, dearest first.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import io
import json
import logging
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.testing._internal.common_utils import TestCase

from torch_tenon import _C, config
from torch_tenon.frontends import dynamo
from torch_tenon.testing.conformance.comparison import Comparison, Mismatch
from torch_tenon.testing.conformance.databases import op_infos
from torch_tenon.testing.conformance.op_checks import OpChecks
from torch_tenon.testing.conformance.placement import Placement
from torch_tenon.testing.conformance.tolerance import tolerance

DTYPES = ("float32", "bfloat16", "int64")


@dataclass
class Sample:
    """What came of one sample: `right`, `wrong` or `untraced`, and the calls in its graphs."""

    status: str
    reason: str = ""
    fallbacks: dict[str, str] = field(default_factory=dict)
    graphs: int = 0


@dataclass
class Case:
    """One entry of the database with one dtype."""

    name: str
    dtype: str
    samples: list[Sample] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def status(self) -> str:
        """The worst that came of a sample; `untraced` if none was traced."""
        found = {s.status for s in self.samples} - {"untraced"}
        return min(found, key=("wrong", "right").index) if found else "untraced"

    @property
    def fallbacks(self) -> dict[str, str]:
        """Ops that became calls in any sample, each with the reason."""
        return {op: why for s in self.samples for op, why in s.fallbacks.items()}


class CompiledOp:
    """An entry of the database whose calls on tensors of the device are compiled."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.op, name)

    def start(self) -> None:
        """Forgets the sample before."""
        torch._dynamo.reset()
        self.sample = Sample("right")
        self.compiled: dict[bool, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        devices = {x.device if isinstance(x, torch.Tensor) else x for x in leaves
                   if isinstance(x, torch.Tensor | torch.device)}  # fmt: skip
        if not any(d.type == "tenon" for d in devices):
            return self.op(*args, **kwargs)
        grad = torch.is_grad_enabled()
        if grad not in self.compiled:
            run = self.op.op
            self.compiled[grad] = torch.compile(
                lambda *a, **k: run(*a, **k), backend=self._backend, fullgraph=True, dynamic=False
            )
        try:
            return self.compiled[grad](*args, **kwargs)
        except Exception as error:
            problem = self._untraced_on_cpu(args, kwargs, error)
            if problem is None:
                raise
            self.sample = Sample("untraced", problem)
            raise

    def _backend(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        compile_graph = dynamo.compile_graph

        def recording(graph: torch.fx.GraphModule, example: Sequence[Any], **rest: Any) -> Any:
            run = compile_graph(graph, example, **rest)
            self.sample.graphs += 1
            compiled = getattr(run, "compiled", None)
            found = (
                {"(graph)": "runs by reference"} if compiled is None else compiled.built.fallbacks
            )
            self.sample.fallbacks.update(found)
            return run

        with mock.patch.object(dynamo, "compile_graph", recording):
            return dynamo.tenon_backend(module, inputs)

    def _untraced_on_cpu(self, args: Any, kwargs: Any, error: Exception) -> str | None:
        """Why Dynamo cannot trace the call on the CPU either, None if it can."""
        place = Placement("cpu", grad=True)
        args, kwargs = torch.utils._pytree.tree_map(
            lambda x: (
                x.detach().cpu().requires_grad_(x.requires_grad)
                if isinstance(x, torch.Tensor)
                else place.device
                if isinstance(x, torch.device)
                else x
            ),
            (args, kwargs),
        )
        run = self.op.op
        torch._dynamo.reset()
        try:
            torch.compile(
                lambda *a, **k: run(*a, **k), backend="aot_eager", fullgraph=True, dynamic=False
            )(*args, **kwargs)
        except Exception as theirs:
            text = f"{type(theirs).__name__}: {theirs}".strip().splitlines()
            return " ".join(text[:2])[:200]
        return None


def _call(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def run_case(name: str, dtype: torch.dtype, limit: int) -> Case:
    """Runs samples of one entry, `limit` of them spread over all (0: every one)."""
    from torch.testing._internal import common_methods_invocations as invocations

    began = time.perf_counter()
    case = Case(name, str(dtype).removeprefix("torch."))
    # What the database wraps random ops in has to be something that Dynamo goes into.
    setattr(invocations, "wrapper_set_seed", _call)  # noqa: B010
    op = CompiledOp(op_infos()[name])
    test = TestCase()
    test.precision, test.rel_tol = tolerance(op.op, dtype)
    checks = OpChecks(op, dtype, "tenon", Comparison("tenon", test.assertEqual))
    torch.manual_seed(0)
    try:
        samples = [sample for _, sample in checks._samples()]
    except Exception as error:  # the database's own limits
        case.samples.append(Sample("untraced", f"samples: {error}"[:200]))
        return case
    for sample in samples[:: max(1, len(samples) // limit)][:limit] if limit else samples:
        op.start()
        try:
            outcome = checks.backward(sample)
            if outcome is None:  # nothing to differentiate
                outcome = checks.forward(sample)
            if outcome is not None and outcome.error is not None:
                op.sample.status, op.sample.reason = "untraced", f"the CPU raises {outcome.error}"
        except Mismatch as mismatch:
            if op.sample.status != "untraced":
                op.sample.status = "wrong"
                last = getattr(mismatch, "traceback", "").strip().splitlines()[-8:]
                op.sample.reason = f"{mismatch.reason}: {mismatch}"[:400] + "\n" + "\n".join(last)
        except Exception:
            op.sample.status, op.sample.reason = "wrong", traceback.format_exc()[-800:]
        op.sample.reason = op.sample.reason[:1200]
        case.samples.append(op.sample)
    case.seconds = time.perf_counter() - began
    return case


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without PyTorch's warnings and its log of what it could not trace."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def chosen(names: Sequence[str]) -> list[str]:
    """The entries called `names`, each with all its variants; every one if there are no names."""
    return [n for n, op in op_infos().items() if not names or n in names or op.name in names]


def check(names: Sequence[str], dtypes: Sequence[str], limit: int) -> Iterator[Case]:
    """Runs the cases of entries of the database."""
    for name in names:
        for dtype in dtypes:
            if getattr(torch, dtype) in op_infos()[name].dtypes:
                with quiet():
                    case = run_case(name, getattr(torch, dtype), limit)
                yield case


def summarise(cases: Sequence[Case], untraced: bool = True) -> None:
    """Prints what is wrong and what fell back, and the shares."""
    traced = [c for c in cases if c.status != "untraced"]
    for c in cases:
        for k, s in enumerate(c.samples):
            if s.status == "wrong" or (untraced and c.status == s.status == "untraced"):
                print(f"{s.status} {c.name} {c.dtype} #{k}: {s.reason}")
    ops: dict[str, set[str]] = collections.defaultdict(set)
    reasons: dict[str, str] = {}
    for c in traced:
        reasons.update(c.fallbacks)
        for op in c.fallbacks:
            ops[op].add(f"{c.name} {c.dtype}")
    alone = collections.Counter(next(iter(c.fallbacks)) for c in traced if len(c.fallbacks) == 1)
    print("calls of PyTorch's kernels, by cases (and those where it is the only one):")
    for op, where in sorted(ops.items(), key=lambda item: -len(item[1])):
        some = ", ".join(sorted({w.partition(" ")[0] for w in where})[:3])
        print(f"  {op} {len(where)} ({alone[op]}): {reasons[op]}; {some}")
    right = sum(c.status == "right" for c in traced)
    lowered = sum(not c.fallbacks for c in traced)
    total = max(len(traced), 1)
    print(
        f"{right} of {len(traced)} cases right ({100 * right / total:.2f} %), "
        f"{lowered} without a fallback ({100 * lowered / total:.1f} %), "
        f"{len(cases) - len(traced)} not traced; "
        f"{sum(len(c.samples) for c in traced)} samples, {sum(c.seconds for c in cases):.0f} s"
    )


def read(path: Path) -> list[Case]:
    """The cases that `--json` wrote."""
    return [
        Case(c["name"], c["dtype"], [Sample(**s) for s in c["samples"]], c["seconds"])
        for c in json.loads(path.read_text())
    ]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=2, help="of each case; 0 for all")
    parser.add_argument("--dtype", nargs="*", default=DTYPES)
    parser.add_argument("--only", nargs="*", default=[], help="names of the database")
    parser.add_argument("--part", default="1/1", help="one of several equal parts, as 2/4")
    parser.add_argument("--json", type=Path, help="write the cases to this file")
    parser.add_argument("--summarise", nargs="*", type=Path, help="print what these files hold")
    options = parser.parse_args()
    cases: list[Case] = []
    if options.summarise:
        cases = [c for path in options.summarise for c in read(path)]
    else:
        # Eager code beside the graphs, the seed's check for one, must not go over to plans midway.
        _C.set_execute_mode(config.EXECUTE_MODES.index("compiled"))
        part, parts = (int(n) for n in options.part.split("/"))
        names = chosen(options.only)[part - 1 :: parts]
        for case in check(names, options.dtype, options.samples):
            cases.append(case)
            if case.status == "wrong":
                print(f"wrong: {case.name} {case.dtype}", flush=True)
            if options.json:
                options.json.write_text(json.dumps([dataclasses.asdict(c) for c in cases]))
    summarise(cases)
    return any(c.status == "wrong" for c in cases)


if __name__ == "__main__":
    sys.exit(main())
