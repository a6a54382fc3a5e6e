"""Runs PyTorch's op database through the compiler and compares with PyTorch's CPU.

    python tests/compiler/op_db.py [--samples N] [--dtype float32 ...] [--only NAME ...]

Each sample is traced to ATen ops (for floating dtypes also with its backward), built, scheduled,
compiled and run. An answer is right when it is close to PyTorch's, or no further from the float64
answer than PyTorch's own. Prints failures, fallbacks by op, and the shares of both.
"""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from torch_tenon.compiler.build import Output, build
from torch_tenon.compiler.cache import Cache
from torch_tenon.compiler.cpu_compiler import CpuCompiler
from torch_tenon.compiler.plan import Plan
from torch_tenon.frontends.dynamo import decompositions

# Ops whose answer is not determined by their arguments.
RANDOM = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    "rand_like", "randn_like", "randint_like", "rand", "randn", "randint", "bernoulli", "normal",
    "uniform", "exponential", "geometric", "log_normal", "cauchy", "multinomial", "svd_lowrank",
    "pca_lowrank", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout", "randperm",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "nn.functional.rrelu", "nn.functional.multi_head_attention_forward",
    "nn.functional.scaled_dot_product_attention", "tensor_split", "bfloat16_rand", "resize_",
    "resize_as_", "to_sparse", "normal.in_place", "normal.number_mean",
}  # fmt: skip


@dataclass
class Case:
    """One traced sample."""

    name: str
    inputs: list[torch.Tensor]
    expected: list[Any]
    wide: Callable[[], list[Any]]
    plan: Plan
    outputs: list[Any]
    fallbacks: dict[str, str]
    problem: str = ""


@dataclass
class Report:
    """Totals over many cases."""

    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    untraced: dict[str, str] = field(default_factory=dict)
    lowered: int = 0
    fallbacks: collections.Counter[str] = field(default_factory=collections.Counter)


def functions(op: Any, sample: Any, dtype: torch.dtype, backward: bool) -> tuple[Any, list[Any]]:
    """The sample as a function of a flat list of tensors."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    where = [k for k, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    inputs = [leaves[k].detach().clone() for k in where]

    def call(*tensors: torch.Tensor) -> list[Any]:
        filled = list(leaves)
        for k, t in zip(where, tensors, strict=True):
            filled[k] = t
        first, args, keywords = pytree.tree_unflatten(filled, spec)
        return pytree.tree_leaves(op(first, *args, **keywords))

    def with_backward(*tensors: torch.Tensor) -> list[Any]:
        wanted = [
            t.detach().requires_grad_(leaves[k].requires_grad)
            for k, t in zip(where, tensors, strict=True)
        ]
        with torch.enable_grad():
            out = call(*wanted)
            roots = [o for o in out if isinstance(o, torch.Tensor) and o.requires_grad]
            leaves_ = [t for t in wanted if t.requires_grad]
            if not roots or not leaves_:
                return out
            seeds = [torch.ones_like(o) * 0.5 for o in roots]
            grads = torch.autograd.grad(roots, leaves_, seeds, allow_unused=True)
        return [*[o.detach() if isinstance(o, torch.Tensor) else o for o in out], *grads]

    return (with_backward if backward else call), inputs


def cases(op: Any, dtype: torch.dtype, count: int, report: Report) -> list[Case]:
    """The first samples of an op, traced and scheduled."""
    backward = dtype.is_floating_point and op.supports_autograd
    found: list[Case] = []
    name = f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''} {dtype}"
    try:
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=backward))
    except Exception as error:  # the database's own limits
        report.untraced[name] = f"samples: {error}"
        return []
    for k, sample in enumerate(samples[:: max(1, len(samples) // count)][:count]):
        label = f"{name} #{k}"
        try:
            function, inputs = functions(op, sample, dtype, backward)
            expected = function(*[t.clone() for t in inputs])

            def wide(function: Any = function, inputs: Any = inputs) -> list[Any]:
                double = [t.double() if t.is_floating_point() else t.clone() for t in inputs]
                return function(*double)

            first = make_fx(function, tracing_mode="fake")(*inputs)
            traced = make_fx(
                torch.func.functionalize(first, remove="mutations_and_views"),
                decomposition_table=decompositions(),
                tracing_mode="fake",
            )(*inputs)
        except Exception as error:
            report.untraced[label] = f"{type(error).__name__}: {error}"[:200]
            continue
        try:
            output = next(n for n in traced.graph.nodes if n.op == "output")
            flat = pytree.tree_leaves(output.args[0], is_leaf=lambda x: x is None)
            output.args = (flat,)
            traced.graph.eliminate_dead_code()
            built = build(traced)
            plan = Plan(built.program)
            case = Case(label, inputs, expected, wide, plan, built.outputs, built.fallbacks)
            if built.program.random is not None:
                case.inputs = [*inputs, torch.tensor(7), torch.tensor(0)]
            found.append(case)
        except Exception as error:
            if "known only once data" in str(error) or "symbolic Sym" in str(error):
                report.untraced[label] = str(error)
                continue
            where = traceback.extract_tb(error.__traceback__)[-1]
            report.failed[label] = (
                f"building: {type(error).__name__}: {error} "
                f"({Path(where.filename).name}:{where.lineno})"
            )[:300]
    return found


def close(got: Any, want: Any, wide: Any) -> str:
    """Empty, or how `got` is wrong."""
    if not isinstance(want, torch.Tensor):
        return "" if got == want or not isinstance(got, torch.Tensor) else f"{got} for {want}"
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype} {tuple(got.shape)} for {want.dtype} {tuple(want.shape)}"
    if not want.dtype.is_floating_point:
        return "" if torch.equal(got, want) else f"{got.flatten()[:6]} for {want.flatten()[:6]}"
    low = want.dtype in (torch.bfloat16, torch.float16)
    rtol, atol = (1.6e-2, 1e-2) if low else (2e-5, 2e-5)
    if torch.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True):
        return ""
    if isinstance(wide, torch.Tensor) and wide.shape == got.shape:
        ours, theirs = (got.double() - wide).abs(), (want.double() - wide).abs()
        finite = wide.isfinite()
        same = (got.isnan() == wide.isnan()).all()
        slack = (1e-2 if low else 1e-4) * (1 + wide.abs())
        if same and bool((ours <= 4 * theirs.nan_to_num(0) + slack)[finite].all()):
            return ""
    bad = ~torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
    return (
        f"{int(bad.sum())} of {bad.numel()}: {got[bad][:4].tolist()} for {want[bad][:4].tolist()}"
    )


def run(batch: Sequence[Case], compiler: CpuCompiler, report: Report) -> None:
    """Compiles the cases together, then runs each."""
    sources = list(dict.fromkeys(s for c in batch for s in c.plan.sources))
    try:
        compiler.functions(sources)
    except Exception as error:
        print(f"compiling: {error}", flush=True)
    for case in batch:
        try:
            got = case.plan.compile(compiler).run(case.inputs)
            answers = [got[o.number] if isinstance(o, Output) else o for o in case.outputs]
            problem = ""
            if case.name.split()[0].split(".non")[0] not in RANDOM:
                wide: list[Any] | None = None
                for k, (a, b) in enumerate(zip(answers, case.expected, strict=True)):
                    problem = close(a, b, None)
                    if problem and isinstance(b, torch.Tensor) and b.is_floating_point():
                        wide = case.wide() if wide is None else wide
                        problem = close(a, b, wide[k])
                    if problem:
                        problem = f"output {k}: {problem}"
                        break
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            report.failed[case.name] = problem[:300]
            continue
        report.passed += 1
        report.fallbacks.update(set(case.fallbacks))
        report.lowered += not case.fallbacks


def check(
    dtypes: Sequence[torch.dtype], samples: int, only: Sequence[str], compiler: CpuCompiler
) -> Report:
    """Runs the database."""
    report = Report()
    batch: list[Case] = []
    for op in op_db:
        if only and op.name not in only:
            continue
        for dtype in dtypes:
            if dtype in op.dtypes:
                batch += cases(op, dtype, samples, report)
        if len(batch) >= 40:
            run(batch, compiler, report)
            batch = []
    run(batch, compiler, report)
    return report


def main() -> int:
    """The command."""
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--dtype", nargs="*", default=["float32", "bfloat16", "int64"])
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        compiler = CpuCompiler(Cache(Path(folder) / "cache"))
        dtypes = [getattr(torch, d) for d in options.dtype]
        report = check(dtypes, options.samples, options.only, compiler)
    for name, problem in report.failed.items():
        print(f"FAIL {name}: {problem}")
    if options.only:
        for name, problem in report.untraced.items():
            print(f"untraced {name}: {problem}")
    print("fallbacks:", *(f"{op} {n}" for op, n in report.fallbacks.most_common(120)), sep="\n  ")
    total = report.passed + len(report.failed)
    print(
        f"{report.passed} of {total} right ({100 * report.passed / max(total, 1):.1f} %), "
        f"{report.lowered} without fallback ({100 * report.lowered / max(total, 1):.1f} %), "
        f"{len(report.untraced)} not traced, {time.perf_counter() - start:.0f} s"
    )
    return bool(report.failed)


if __name__ == "__main__":
    sys.exit(main())
