"""The builder leaves the machine to programs that have just begun, and later takes a share."""

from __future__ import annotations

import sys

import pytest
from fresh_process import output

CODE = """
import os, subprocess, sys, threading, time
from torch_tenon.builder import priority

priority.YOUNG = 0.3
before = os.getpriority(os.PRIO_PROCESS, 0)
p = priority.Priority()
nice = before if p.yields else min(before + priority.NICE, 19)
assert os.getpriority(os.PRIO_PROCESS, 0) == nice

threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

def policies():
    ours = {os.sched_getscheduler(int(t)) for t in os.listdir("/proc/self/task")}
    return ours | {os.sched_getscheduler(child.pid)}

p.newcomer()
young = policies()
deadline = time.monotonic() + 60
while os.SCHED_IDLE in policies() and time.monotonic() < deadline:
    time.sleep(0.01)
child.kill()
print(not p.yields or young == {os.SCHED_IDLE}, policies() == {os.SCHED_OTHER})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="policies of threads are Linux's")
def test_it_yields_at_first_and_has_a_share_later() -> None:
    assert output(CODE, TENON_BUILDER="off") == "True True"


STARVED = """
import ctypes, os, subprocess, sys
from torch_tenon.builder import priority

priority.YOUNG = 0.2
p = priority.Priority()
watch = "import os, sys, time; time.sleep(1); print(os.sched_getscheduler(int(sys.argv[1])))"
watcher = subprocess.Popen([sys.executable, "-c", watch, str(os.getpid())], stdout=subprocess.PIPE)
p.newcomer()
ctypes.PyDLL(None).usleep(3_000_000)  # with the interpreter's lock
print(not p.yields or int(watcher.communicate()[0]) == os.SCHED_OTHER)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="policies of threads are Linux's")
def test_a_busy_interpreter_has_its_share_back() -> None:
    assert output(STARVED, TENON_BUILDER="off") == "True"


ALONE = """
import os, signal
from torch_tenon.builder import priority

p = priority.Priority()
if p.yields:
    os.kill(p._keeper, signal.SIGKILL)
    os.waitpid(p._keeper, 0)
p.newcomer()
print(os.sched_getscheduler(0) == os.SCHED_OTHER)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="policies of threads are Linux's")
def test_it_keeps_its_share_where_nobody_would_give_it_back() -> None:
    assert output(ALONE, TENON_BUILDER="off") == "True"
