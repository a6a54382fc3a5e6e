"""The builder leaves the machine to programs that have just begun, and later takes a share."""

from __future__ import annotations

import sys

import pytest
from fresh_process import output

CODE = """
import os, signal, subprocess, sys, threading, time
from torch_tenon.builder import priority

priority.YOUNG = 0.3
before = os.getpriority(os.PRIO_PROCESS, 0)
p = priority.Priority()
nice = before if p.yields else min(before + priority.NICE, 19)
assert os.getpriority(os.PRIO_PROCESS, 0) == nice

threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()

child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

def policies():
    ours = {os.sched_getscheduler(int(t)) for t in os.listdir("/proc/self/task")}
    return ours | {os.sched_getscheduler(child.pid)}

if p.yields:
    os.kill(p._keeper, signal.SIGSTOP)  # else it may be over before it is looked at
p.newcomer()
young = policies()
if p.yields:
    os.kill(p._keeper, signal.SIGCONT)
deadline = time.monotonic() + 100
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
watch = '''
import os, sys, time
deadline = time.monotonic() + 100
input()
while os.sched_getscheduler(int(sys.argv[1])) != os.SCHED_OTHER and time.monotonic() < deadline:
    time.sleep(0.01)
print(os.sched_getscheduler(int(sys.argv[1])))
'''
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
watcher = subprocess.Popen([sys.executable, "-c", watch, str(os.getpid())], **pipes)
p.newcomer()
watcher.stdin.write(b"\\n")
watcher.stdin.close()
seen = ctypes.create_string_buffer(4)
ctypes.PyDLL(None).read(watcher.stdout.fileno(), seen, 4)  # with the interpreter's lock
print(not p.yields or int(seen.value) == os.SCHED_OTHER)
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


LATE = """
import os, threading, time
from torch_tenon.builder import priority

priority.YOUNG = 0.1
p = priority.Priority()
thread = threading.Thread(target=time.sleep, args=(1000,), daemon=True)
thread.start()
policy, deadline = os.sched_setscheduler, time.monotonic() + 60

def until(wanted, thread):
    while os.sched_getscheduler(thread) != wanted and time.monotonic() < deadline:
        time.sleep(0.01)

def slowly(number, wanted, parameters):
    policy(number, wanted, parameters)
    if number == os.getpid():
        until(os.SCHED_OTHER, number)  # until it has come to run again

os.sched_setscheduler = slowly
p.newcomer()
until(os.SCHED_OTHER, thread.native_id)
print(os.sched_getscheduler(thread.native_id) == os.SCHED_OTHER)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="policies of threads are Linux's")
def test_who_yields_late_has_its_share_back_all_the_same() -> None:
    assert output(LATE, TENON_BUILDER="off") == "True"
