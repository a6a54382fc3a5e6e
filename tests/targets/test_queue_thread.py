"""The package's own thread for queues (targets/thread.py)."""

import os
import sys
import threading

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
    with pytest.raises(RuntimeError, match="has ended"):  # who polls is told as well
        lost.done()
    thread.start([lambda: done.append(2)]).wait()  # another thread goes on where that one ended
    assert done == [1, 2] and lost.done()


@pytest.mark.skipif(sys.platform != "linux", reason="fork")
def test_a_forked_child_leaves_its_parent_s_work_alone() -> None:
    thread, begins, goes_on, done = QueueThread("toy"), threading.Event(), threading.Event(), []
    first = thread.start([begins.set, goes_on.wait])
    second = thread.start([lambda: done.append("the parent's")])
    begins.wait()
    child = os.fork()
    if child == 0:
        try:
            thread.start([lambda: done.append("the child's")]).wait()
            ended = 0
            for pending in (first, second):
                for look in (pending.done, pending.wait):
                    try:
                        look()
                    except RuntimeError as error:
                        ended += "has ended" in str(error)
            os._exit(0 if (ended, done) == (4, ["the child's"]) else 3)
        finally:
            os._exit(4)
    goes_on.set()
    second.wait()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert done == ["the parent's"] and first.done()
