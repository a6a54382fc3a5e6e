"""The thread that makes plans of windows while the program runs on."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
import time
from collections import deque

from torch_tenon import _C, device
from torch_tenon.pytorch import process

log = logging.getLogger("torch_tenon.program")

_NICE = 10
_GRACE = 0.5  # seconds that a program has for its first steps, before anything is compiled
_LAST_WAIT = 60.0  # seconds for a plan that is broken off


class Builder:
    """The windows that want a plan, and the thread that makes them; it starts with the first."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: deque[_C.Window] = deque()  # the first is in work
        self.thread: threading.Thread | None = None
        self.awaited = self.stopped = False

    def ask(self, window: _C.Window, wait: bool) -> None:
        """Puts a window in the queue, once; with `wait` it comes back when that one is done, or
        nobody will do it."""
        with self.changed:
            if window not in self.waiting:
                self.waiting.append(window)
            self.awaited = self.awaited or wait
            self.changed.notify_all()
            if self.thread is None and not self._start():
                self.waiting.clear()
                window.finish()  # it may ask again
                return
            if wait:
                self.changed.wait_for(lambda: self.stopped or window not in self.waiting)

    def _start(self) -> bool:
        thread = threading.Thread(target=self._run, name="tenon-builder", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the process may have no more of them
            log.warning("no thread to make plans with, so windows run by reference: %s", error)
            return False
        self.thread = thread
        return True

    def stop(self, timeout: float) -> None:
        """Ends the thread after the plan that it makes, if that takes no longer than `timeout`
        seconds, or else within the plan.

        A thread that comes back from C++ to an interpreter that is going down aborts the process.
        It has low priority, so on a busy machine a plan may take any time.
        """
        with self.changed:
            self.stopped = True
            self.changed.notify_all()
        if self.thread is None:
            return
        self.thread.join(timeout)
        if self.thread.is_alive():
            backend = device.backend()
            if backend is not None:
                backend.stop()
            self._break_off(self.thread)

    def _break_off(self, thread: threading.Thread) -> None:
        deadline = time.monotonic() + _LAST_WAIT
        while thread.is_alive() and time.monotonic() < deadline:
            # Python raises it between two steps of the thread's code. What catches everything
            # there may catch it, so it comes again. Threads end by SystemExit without a word.
            identifier = ctypes.c_ulong(thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(identifier, ctypes.py_object(SystemExit))
            thread.join(0.05)

    def forget(self) -> None:
        """After a fork: the thread is gone, and whose plan it owed may ask again."""
        self.changed, self.thread = threading.Condition(), None
        while self.waiting:
            self.waiting.pop().finish()

    def _run(self) -> None:
        # On Linux this is the thread's own, and that of what it starts to compile with: they take
        # what the program that runs meanwhile leaves.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        with self.changed:
            self.changed.wait_for(lambda: self.stopped or self.awaited, _GRACE)
            if self.stopped:
                return
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.stopped or self.waiting)
                if self.stopped:
                    return
            window = self.waiting[0]
            try:
                with process.making_plans:
                    from torch_tenon.builder.planning import plan_window  # the compiler

                    plan_window(window)
            except BaseException:  # such as an interrupt: who waits is not left waiting
                window.finish()
                if self.stopped:  # which broke it off
                    return
                log.exception("a plan was not made")
            with self.changed:
                # Where nothing came of it, it may have been asked for again by now: it stays.
                if not window.waits:
                    self.waiting.popleft()
                self.changed.notify_all()


process.builder = builder = Builder()
