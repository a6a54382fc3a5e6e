"""What Python does within a device's work: in a method of its queue, or in a kernel of the host.

The code runs in processes whose device is asynchronous.
"""

import pytest
from fresh_process import ASYNCHRONOUS_TARGET, output


def run_there(code: str, *arguments: str, **environment: str) -> str:
    return output(code, *arguments, TENON_TARGET=ASYNCHRONOUS_TARGET, **environment)


KERNEL = """
    import sys, torch

    def uses_queue(x):
        uses[sys.argv[1]]()
        return x + 1

    library = torch.library.Library("within", "DEF")  # before the device looks
    library.define("uses_queue(Tensor x) -> Tensor")
    library.impl("uses_queue", uses_queue, "CPU")
    library.impl("uses_queue", torch.empty_like, "Meta")
    import torch_tenon
    from torch_tenon import _C

    there = torch.ones(4, device="tenon")
    compiled = torch.compile(lambda x: x * 2 + 1, backend="tenon")
    uses = {
        "an event": lambda: torch.Event("tenon").record(),
        "a log": lambda: _C.ProfileLog(100).stop(),
        "a graph of torch.compile": lambda: compiled(there),
    }
    uses[sys.argv[1]]()
    x = torch.ones(4).to("tenon")
    for _ in range(4):  # the first call runs at once, the others within a window
        y = torch.ops.within.uses_queue(x * 2)
        assert y.tolist() == [3, 3, 3, 3]
    print("right")
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["an event", "a log", "a graph of torch.compile"])
def test_a_kernel_of_the_host_uses_the_queue_that_runs_it(what: str) -> None:
    assert run_there(KERNEL, what, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "right"


FINALIZER = """
    import threading, torch, torch_tenon

    class Reads:
        def __del__(self):
            total.add_(1)
            read.append(total.tolist())

    total, x = (torch.zeros(2, device="tenon") for _ in range(2))
    for _ in range(3):  # so that it is recorded from here on
        x.add_(1)
        total.add_(1).tolist()
        torch.tenon.synchronize()
    event = type(torch_tenon.target().queue(0).commit())
    done, left, read = event.done, [Reads()], []

    def drops(self):
        if threading.current_thread() is threading.main_thread():
            left.clear()
        return done(self)

    event.done = drops
    x.add_(1)
    torch.tenon.synchronize()
    print(x.tolist(), total.tolist(), read)
"""


def test_a_finalizer_that_runs_while_the_device_is_asked() -> None:
    assert run_there(FINALIZER) == "[4.0, 4.0] [4.0, 4.0] [[4.0, 4.0]]"


CAPTURE = """
    import signal, threading, torch, torch_tenon

    event = type(torch_tenon.target().queue(0).commit())
    done, left = event.done, 0

    def interrupted(self):
        global left
        if threading.current_thread() is threading.main_thread():
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
        return done(self)

    event.done = interrupted
    x, added, came = torch.zeros(2, device="tenon"), 0, 0
    for _ in range(3):  # so that it is recorded from here on
        x.add_(1)
        added += 1
        torch.tenon.synchronize()
    for number in range(1, 6):
        graph = torch.accelerator.Graph()
        x.add_(1)
        added += 1
        try:
            left = number
            graph.capture_begin()
            left = 0
            graph.capture_end()
        except KeyboardInterrupt:
            came += 1
        left = 0
        del graph
        assert x.tolist() == [added, added], number
    print(came > 0)
"""


def test_an_interrupt_as_a_capture_begins() -> None:
    assert run_there(CAPTURE) == "True"


EVENT = """
    import gc, threading, torch, torch_tenon

    of_target = type(torch_tenon.target().queue(0).commit())
    wait, done = of_target.wait, of_target.done
    waits, may_end = threading.Event(), threading.Event()

    def held(self):
        if threading.current_thread() is thread:
            waits.set()
            assert may_end.wait(60)
        wait(self)

    of_target.wait = held
    of_target.done = lambda self: may_end.is_set() and done(self)
    event = torch.Event("tenon")
    event.record()
    thread = threading.Thread(target=event.synchronize, daemon=True)
    thread.start()
    assert waits.wait(60)
    event.record()
    gc.collect()
    may_end.set()
    thread.join(60)
    event.synchronize()
    print(thread.is_alive(), event.query())
"""


def test_an_event_that_is_recorded_again_while_a_thread_waits_for_it() -> None:
    assert run_there(EVENT) == "False True"
