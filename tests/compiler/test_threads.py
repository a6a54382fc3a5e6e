"""Programs that are built at the same time on several threads."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tenon.compiler.plan import Plan
from torch_tenon.frontends import graph
from torch_tenon.frontends.dynamo import decompositions
from torch_tenon.targets.cpu.backend import cpu_backend

FUNCTIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: torch.softmax(x * 2, 1),
    lambda x: torch.nn.functional.layer_norm(x + 1, (32,)),
    lambda x: torch.cat([x.sin(), x[:, 3:].cos()], 1).cumsum(0),
    lambda x: (x @ x.t()).relu().sum(0),
    lambda x: x.scatter_add(0, x[:4].long() * 0, x[4:8]) + 1,
    lambda x: torch.nn.functional.pad(x, (1, 2)).roll(3, 1).flip(0),
    lambda x: x.view(4, 8, 8, 4).permute(2, 0, 3, 1).reshape(32, 32).var(1),
    lambda x: torch.where(x > 0, x.exp(), x.abs().sqrt()).argmax(1),
]


@pytest.fixture(autouse=True)
def threads_that_alternate_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
def test_eight_threads_build_at_once() -> None:
    x = torch.randn(32, 32)
    modules = []
    for f in FUNCTIONS:
        listed = functools.partial(lambda f, x: [f(x)], f)
        modules.append(make_fx(listed, decompositions(), tracing_mode="fake")(x))
    want = [Plan(graph.build(m).program, cpu_backend()).sources for m in modules]
    got: list[list[list[str]]] = [[] for _ in modules]
    failed: list[BaseException] = []
    start = threading.Barrier(len(modules))

    def work(k: int) -> None:
        start.wait()
        try:
            for _ in range(100):
                got[k].append(Plan(graph.build(modules[k]).program, cpu_backend()).sources)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(modules))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed[0]
    assert got == [[sources] * 100 for sources in want]
