"""Processes that are the ranks of a group, for tests: they start once and run many functions.

A function is one of a test's module, so that the processes find it by its name. Everything has a
time limit, after which the processes are killed: nothing hangs.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

#: Seconds that a collective waits for the other ranks.
PATIENCE = 60.0


def processes() -> Any:
    """Starts processes by one that has imported what they need."""
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.distributed.training", "sklearn.datasets", "typer"])
    return context


def _serve(rank: int, size: int, store: str, backend: str | None, calls: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.tenon.set_device(rank % torch.tenon.device_count())
    dist.init_process_group(
        backend,
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=PATIENCE),
    )
    while True:
        try:
            function, arguments = pickle.loads(calls.recv_bytes())
        except EOFError:  # the test is over
            break
        torch.manual_seed(0)
        try:
            answer = (True, function(*arguments))
        except BaseException as error:  # that of a checkpoint is no Exception
            answer = (False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        calls.send_bytes(pickle.dumps(answer))
    dist.destroy_process_group()


class Ranks:
    """`size` processes, whose default group has the `backend`, None: that which PyTorch chooses."""

    def __init__(self, size: int, backend: str | None = None, **variables: str) -> None:
        self.size = size
        self.backend = backend
        self.variables = variables
        self.processes: list[Any] = []

    def start(self) -> None:
        """Starts the processes, and does not wait for them."""
        # Processes start sooner where one that has imported PyTorch makes them; it has one target.
        context: Any = multiprocessing.get_context("spawn")
        if not self.variables:
            context = processes()
        store = str(Path(tempfile.mkdtemp()) / "store")
        self.calls = []
        for rank in range(self.size):
            here, there = context.Pipe()
            arguments = (rank, self.size, store, self.backend, there)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            with self._environment():
                process.start()
            there.close()
            self.processes.append(process)
            self.calls.append(here)

    @contextmanager
    def _environment(self) -> Iterator[None]:
        before = dict(os.environ)
        os.environ.update(self.variables)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    def outcomes(
        self, function: Callable[..., Any], *arguments: Any, timeout: float = 180
    ) -> list[tuple[bool, Any]]:
        """By rank: whether `function(*arguments)` returned, and the result or the error's text.

        What a rank that dies has is (False, "died"). Raises TimeoutError.
        """
        if not self.processes:
            self.start()
        deadline = time.monotonic() + timeout
        call = pickle.dumps((function, arguments))
        for calls in self.calls:
            calls.send_bytes(call)
        found: list[tuple[bool, Any]] = []
        for calls in self.calls:
            if not calls.poll(max(0.0, deadline - time.monotonic())):
                self.stop(at_once=True)
                raise TimeoutError(
                    f"{function.__name__} took more than {timeout} s; so far: {found}"
                )
            try:
                found.append(pickle.loads(calls.recv_bytes()))
            except EOFError:
                found.append((False, "died"))
        if not all(returned for returned, _ in found):
            self.stop(at_once=True)  # they are out of step
        return found

    def run(self, function: Callable[..., Any], *arguments: Any, timeout: float = 180) -> list[Any]:
        """The results of `function(*arguments)`, by rank; raises AssertionError if one failed."""
        found = self.outcomes(function, *arguments, timeout=timeout)
        errors = [f"rank {k}: {text}" for k, (returned, text) in enumerate(found) if not returned]
        assert not errors, "\n".join(errors)
        return [result for _, result in found]

    def stop(self, at_once: bool = False) -> None:
        """Ends the processes, in order or at once; the next function gets new ones."""
        if not self.processes:
            return
        for calls in self.calls:
            calls.close()
        for process in self.processes:
            if at_once:
                process.kill()
            process.join(10)
            if process.exitcode is None:
                process.kill()
                process.join()
        self.processes = []


@contextmanager
def ranks(size: int, backend: str | None = None, **variables: str) -> Iterator[Ranks]:
    """Ranks for a test or a module of tests, with variables of their environment."""
    group = Ranks(size, backend, **variables)
    group.start()
    try:
        yield group
    finally:
        group.stop()
