"""A signal whose handler raises comes while the core is in a method of a target's."""

import itertools
from pathlib import Path

import pytest
from fresh_process import ASYNCHRONOUS_TARGET, REMOTE_TARGET, output

CODE = """
    import signal, sys, threading, torch, torch_tenon
    from against_cpu import assert_same
    from test_late_errors import sgd, update, weights_of

    def interrupt(signum, frame):
        raise InterruptedError

    NUMBER, HANDLER = getattr(signal, sys.argv[1]), eval(sys.argv[2])
    signal.signal(NUMBER, HANDLER)
    left = came = delivered = 0  # methods until the signal comes; signals

    def interrupted(method):
        def run(*args):
            global left, came
            if threading.current_thread() is threading.main_thread():
                left -= 1
                if left == 0:
                    came += 1
                    signal.raise_signal(NUMBER)
            return method(*args)
        return run

    target = torch_tenon.target()
    if target.host_memory:
        from torch_tenon.targets.cpu import target as cpu
        interruptible = {cpu._LIBC: ["posix_memalign", "free"]}  # what its methods call
    else:
        queue, memory = type(target.queue(0)), type(target.queue(0).memory)
        interruptible = {queue: ["copy", "launch", "call", "commit", "wait"],
                         memory: ["allocate", "free"]}
    for owner, names in interruptible.items():
        for name in names:
            setattr(owner, name, interrupted(getattr(owner, name)))

    methods = 1 if target.host_memory else 12  # of one commit
    weights, on_cpu = weights_of("tenon"), weights_of("cpu")
    optimizer, optimizer_on_cpu = sgd(weights), sgd(on_cpu)
    for number in range(int(sys.argv[3])):
        torch.tenon.synchronize()
        torch.tenon.empty_cache()
        update(weights, optimizer, number)
        large = torch.ones(3 << 18, device="tenon") * 2
        try:
            left = 1 + number % methods
            torch.tenon.synchronize()
            sum(range(10))
        except (InterruptedError, KeyboardInterrupt):
            delivered += 1
        left = 0
        assert delivered == came, (number, delivered, came)
        assert signal.getsignal(NUMBER) is HANDLER
        assert large.sum().item() == 2 * large.numel()
        large = None
        update(on_cpu, optimizer_on_cpu, number)
        assert_same(weights, on_cpu, rtol=1e-6, atol=1e-6)
    print(came >= 3)
"""


HANDLERS = {"SIGINT": "signal.default_int_handler", "SIGALRM": "interrupt"}
# Each signal, mode and target is among those that are not long.
SHORT = {
    ("cpu", "auto", "SIGALRM"),
    ("cpu", "compiled", "SIGINT"),
    (REMOTE_TARGET, "auto", "SIGINT"),
    (ASYNCHRONOUS_TARGET, "compiled", "SIGALRM"),
}


@pytest.mark.parametrize(
    ("target", "mode", "number"),
    [
        pytest.param(*case, marks=() if case in SHORT else pytest.mark.long)
        for case in itertools.product(
            ("cpu", REMOTE_TARGET, ASYNCHRONOUS_TARGET), ("auto", "compiled"), HANDLERS
        )
    ],
)
def test_what_was_recorded_is_not_lost(target: str, mode: str, number: str, tmp_path: Path) -> None:
    settings = {"TENON_TARGET": target, "TENON_EXECUTE": mode, "TENON_CACHE_DIR": str(tmp_path)}
    turns = "24" if mode == "auto" else "12"
    assert output(CODE, number, HANDLERS[number], turns, **settings) == "True"


BEFORE_RECORDING = """
    import signal, torch
    from torch_tenon import _C

    _C.set_before_recording(lambda: signal.raise_signal(signal.SIGINT))
    try:
        x = torch.ones(2, device="tenon") + 1
    except KeyboardInterrupt:
        print("interrupted", (torch.ones(2, device="tenon") + 1).tolist())
"""


def test_one_that_comes_before_the_first_call_is_recorded() -> None:
    assert output(BEFORE_RECORDING) == "interrupted [2.0, 2.0]"
