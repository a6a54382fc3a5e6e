"""The package's own thread for queues (targets/thread.py)."""

import pytest

from torch_tenon.targets.thread import QueueThread


def test_an_event_says_that_its_thread_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    thread = QueueThread("toy")
    with monkeypatch.context() as broken:
        broken.setattr(QueueThread, "_work", lambda self: None)
        lost = thread.start([lambda: done.append(1)])
        with pytest.raises(RuntimeError, match="the thread of the queue 'toy' has ended"):
            lost.wait()
    assert not lost.done()
    thread.start([lambda: done.append(2)]).wait()  # another thread goes on where that one ended
    assert done == [1, 2] and lost.done()
