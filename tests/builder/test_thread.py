"""The thread that makes plans: who asks is heard, whenever it is."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from torch_tenon import device
from torch_tenon.builder import planning
from torch_tenon.builder.thread import Builder


class Window:
    """A window that was asked for; its plan comes of the second try."""

    waits = True

    def finish(self) -> None:
        """The core's answer: whoever runs the window may ask again."""
        self.waits = False


def test_a_window_that_is_asked_for_again_while_it_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    builder, window, tries, done = Builder(), Window(), [], threading.Event()

    def plan_window(given: Window) -> None:
        tries.append(given)
        given.finish()  # other settings came: nothing comes of it
        if len(tries) == 1:
            given.waits = True  # a commit asks again, before the thread is done with it
            builder.ask(given, wait=False)  # type: ignore[arg-type]
        else:
            done.set()

    monkeypatch.setattr(planning, "plan_window", plan_window)
    builder.ask(window, wait=False)  # type: ignore[arg-type]
    try:
        assert done.wait(120), "the second time is forgotten"
    finally:
        builder.stop(60)
    assert not builder.waiting


def test_a_plan_that_takes_long_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    builder, begun = Builder(), threading.Event()

    def plan_window(_: Window) -> None:
        begun.set()
        for _ in range(2000):  # a minute, and faults of single steps are passed over
            try:
                time.sleep(0.03)
            except Exception:
                continue

    monkeypatch.setattr(planning, "plan_window", plan_window)
    monkeypatch.setattr(device, "backend", lambda: None)  # whose compiler would be stopped for good
    builder.ask(Window(), wait=False)  # type: ignore[arg-type]
    assert begun.wait(120)
    builder.stop(0.01)
    assert builder.thread is not None
    assert not builder.thread.is_alive(), "it goes on while the interpreter ends"


def test_a_compiler_that_does_not_load_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, planning.__name__, None)
    builder, window = Builder(), Window()
    asks = threading.Thread(target=builder.ask, args=(window, True), daemon=True)
    asks.start()
    asks.join(60)
    assert not asks.is_alive() and not window.waits
    builder.stop(60)


WITHIN_A_PLAN = """
import threading
import torch
from torch_tenon.builder import planning
from torch_tenon.builder.thread import builder
from torch_tenon.pytorch import process

class Window:
    waits = True

    def finish(self):
        self.waits = False

def plan_window(window):
    begun.set()
    while True:
        a @ a  # without the interpreter's lock

a, begun = torch.ones(300, 300), threading.Event()
process._EXIT_WAIT = 0.01
planning.plan_window = plan_window
builder.ask(Window(), wait=False)
assert begun.wait(120)
"""


def test_a_process_that_ends_within_a_plan() -> None:
    """The thread that came back to an ending interpreter aborted the process."""
    ended = subprocess.run(
        [sys.executable, "-c", WITHIN_A_PLAN], capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
