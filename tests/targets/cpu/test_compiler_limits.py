"""A compiler that does not come to an end, and the loops that once kept one busy for hours."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tenon.compiler.cache import Cache
from torch_tenon.compiler.plan import Plan
from torch_tenon.frontends.graph import build
from torch_tenon.targets.cpu.backend import CpuBackend
from torch_tenon.targets.cpu.compiler import CpuCompiler
from torch_tenon.targets.target import CompileError


def plan(
    compiler: CpuCompiler, function: Callable[..., list[torch.Tensor]], *inputs: torch.Tensor
) -> Plan:
    program = build(make_fx(function, tracing_mode="fake")(*inputs)).program
    return Plan(program, CpuBackend(compiler))


def compiler(folder: Path, script: str, seconds: int) -> CpuCompiler:
    command = folder / "cc"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o700)
    return CpuCompiler(Cache(folder / "cache"), str(command), seconds)


@pytest.mark.slow
def test_a_compiler_may_take_so_much_time_and_no_more(tmp_path: Path) -> None:
    endless = compiler(tmp_path, "while :; do :; done", seconds=0)
    with pytest.raises(CompileError, match="source is in"):
        plan(endless, lambda x: [x * 3 + 1], torch.randn(40)).compile()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What a shell runs in the background ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def running(folder: Path) -> list[str]:
    """The command lines that name a file in the folder, once their processes had time to end.

    That is so many looks, and not so many seconds, in which a busy machine may not run at all.
    """

    def found() -> list[str]:
        lines = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                line = path.read_text(errors="replace").replace("\0", " ")
                lines.append(line + path.with_name("stat").read_text())
        return [line for line in lines if str(folder) in line]

    for _ in range(5000):
        if not found():
            return []
        time.sleep(0.01)
    return found()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("delay", [0, 0.0002, 0.0005, 0.001, 0.002, 0.005, None])
def test_an_interrupt_ends_the_compiler(tmp_path: Path, delay: float | None) -> None:
    """Whenever it comes: also while the process is started, so long after the call; None is when
    the compiler runs."""
    started = tmp_path / "started"
    asleep = compiler(tmp_path, f"echo $$ > {started}; sleep 1000; exit 1", seconds=60)
    made = plan(asleep, lambda x: [x * 3 + 1], torch.randn(40))
    main = threading.get_ident()

    def interrupt() -> None:
        while delay is None and not (started.exists() and started.read_text()):
            time.sleep(0.01)
        time.sleep(delay or 0)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    with pytest.raises(KeyboardInterrupt):
        thread.start()
        made.compile()
    assert not running(tmp_path)


def batch_norm(x: torch.Tensor, *vectors: torch.Tensor) -> list[torch.Tensor]:
    """Channels (1) between what is reduced (0, 2), and vectors with a number for each."""
    m, v, w, b = vectors
    mean, scale = x.mean((0, 2)), (x.var((0, 2)) + 1e-5).rsqrt()
    y = (x - mean[:, None]) * (scale * w)[:, None] + b[:, None]
    return [y.relu(), mean, scale, 0.9 * m + mean, 0.9 * v + scale]


def transposed_columns(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
    """The lanes are dense in two inputs and a row apart in the other."""
    return [(x * z + y.t()).sum(0), (x * y.t() - z).pow(2).sum(0)]


def far_columns(x: torch.Tensor) -> list[torch.Tensor]:
    """Elements near each other in rows far apart."""
    return [x[:, 0] * x[:, 1] + x[:, 3]]


@pytest.mark.parametrize(
    ("function", "sizes", "layout"),
    [
        (batch_norm, [(4, 64, 1024), (64,), (64,), (64,), (64,)], "row"),
        (transposed_columns, [(1024, 1024)] * 3, "column"),
        (far_columns, [(512, 1024)], "flat"),
    ],
)
def test_rows_far_apart(
    function: Callable[..., list[torch.Tensor]],
    sizes: list[tuple[int, ...]],
    layout: str,
    tmp_path: Path,
) -> None:
    inputs = [torch.randn(s) for s in sizes]
    made = plan(CpuCompiler(Cache(tmp_path / "cache"), seconds=10), function, *inputs)
    assert layout in {s.kernel.layout for s in made.steps if s.kernel is not None}
    made.compile()
    for got, want in zip(made.run(inputs), function(*inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
