"""While windows leave the builder a processor, threads that wait for a loop leave it theirs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from fresh_process import output
from waiting import TIMEOUT

USES = """
import os, time
import torch
from torch_tenon import _C

torch.set_num_threads(os.cpu_count())
x = torch.ones(1 << 17)

def seconds_of_others():
    # Of processors, by all threads but this one, which has the others make a batch now and then.
    before = time.process_time() - time.thread_time()
    for _ in range(50):
        x + 1
        time.sleep(0.004)
    return time.process_time() - time.thread_time() - before

def threads():
    return len(os.listdir("/proc/self/task"))

def leave_room(left, wanted):
    _C.note_room(1.0, left)
    deadline = time.monotonic() + 100
    while threads() != wanted:  # the crowd gathers, or ends
        assert time.monotonic() < deadline, threads()
        time.sleep(0.001)

seconds_of_others()
alone = threads()
found = [seconds_of_others()]
leave_room(True, alone + 2)
found.append(seconds_of_others())
leave_room(False, alone)
found.append(seconds_of_others())
print(*found)
"""

several_processors = pytest.mark.skipif(
    (os.cpu_count() or 1) < 2, reason="one processor has no others"
)


@pytest.mark.slow
@several_processors
def test_threads_that_wait_sleep_while_room_is_left() -> None:
    waiting, sleeping, again = map(float, output(USES, OMP_WAIT_POLICY=None).split())
    assert sleeping < min(waiting, again) / 3, (waiting, sleeping, again)


BESIDE = """
import os, time
import torch

torch.set_num_threads(os.cpu_count())
x = torch.ones(1 << 17, device="tenon")

def threads():
    (x + 1).sum().item()
    return len(os.listdir("/proc/self/task"))

for _ in range(3):
    alone = threads()
print(alone, flush=True)
input()
deadline = time.monotonic() + 100
while threads() != alone + 2:
    assert time.monotonic() < deadline, threads()
"""


@pytest.mark.slow
@several_processors
@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="nobody says who waits")
def test_threads_that_wait_sleep_beside_other_programs() -> None:
    """Else they keep the processors for which those wait that are to finish the loop."""
    env = {**os.environ, "TENON_BUILDER": "off"}
    ours = subprocess.Popen(
        [sys.executable, "-c", BESIDE], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert ours.stdout is not None
    assert ours.stdout.readline()
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        ours.communicate(b"\n", timeout=TIMEOUT)
    finally:
        for process in (ours, *busy):
            process.kill()
            process.wait()
    assert ours.returncode == 0


FORKS = """
import os, signal, time
import torch
from torch_tenon import _C

torch.ones(1, device="tenon").cpu()
_C.note_room(1.0, True)
time.sleep(0.2)  # while the crowd gathers
child = os.fork()
if child == 0:
    signal.alarm(200)
    for _ in range(3):  # its parent's crowd, and crowds of its own
        _C.need_no_room()
        _C.note_room(1.0, True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
_C.need_no_room()
"""


def test_a_child_leaves_room_of_its_own() -> None:
    assert output(FORKS) == "0"
