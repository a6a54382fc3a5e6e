"""The thread that makes plans: who asks is heard, whenever it is."""

from __future__ import annotations

import threading

import pytest

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
