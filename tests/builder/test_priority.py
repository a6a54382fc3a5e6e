"""The builder leaves the machine to programs that have just begun, and later takes a share."""

from __future__ import annotations

import sys

import pytest
from fresh_process import output

CODE = """
import os, subprocess, sys, threading, time
from torch_tenon.builder import priority

threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

def policies():
    ours = {os.sched_getscheduler(int(t)) for t in os.listdir("/proc/self/task")}
    return ours | {os.sched_getscheduler(child.pid)}

priority.YOUNG = 0.3
before = os.getpriority(os.PRIO_PROCESS, 0)
p = priority.Priority()
allowed = p._may_yield
nice = before if allowed else min(before + priority.NICE, 19)
assert os.getpriority(os.PRIO_PROCESS, 0) == nice
p.newcomer()
young = policies()
deadline = time.monotonic() + 60
while os.SCHED_IDLE in policies() and time.monotonic() < deadline:
    time.sleep(0.01)
child.kill()
print(not allowed or young == {os.SCHED_IDLE}, policies() == {os.SCHED_OTHER})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="policies of threads are Linux's")
def test_it_yields_at_first_and_has_a_share_later() -> None:
    assert output(CODE, TENON_BUILDER="off") == "True True"
