"""A target to start from: what `tenon new-target` writes, a file and its tests.

docs/target.md goes on from there.
"""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path

from torch_tenon.targets import BUILT_IN

TARGET = '''"""The target @NAME@: what stands behind the device `tenon`.

    TENON_TARGET=@FILE@:@CLASS@ python script.py

It works as it is, on memory of its own that nobody but its queue reaches: every op falls back to
the host. Replace what is marked with TODO by calls of your driver, in this order, and run the tests
beside this file after each.
"""

import ctypes
import itertools
import threading

from torch_tenon.targets.target import Passed, Target


class @CLASS@Queue:
    """The device's queue. The core calls it from any thread, one at a time.

    A place is a handle that `allocate` gave and an offset in bytes; an integer is an address of the
    host's, whose memory stays until the event of the next `commit` is done.
    """

    # True where the device can run the host's code on its memory; it then needs a method `call`.
    runs_calls = False

    def __init__(self, memory):
        self.memory = memory
        self.commands = []  # the open command buffer

    def copy(self, dst, src, nbytes):
        """Adds a copy to the open command buffer."""
        # TODO: enqueue the driver's copy. Either end, or both, may be on the device.
        self.commands.append((dst, src, nbytes))

    # TODO: `launch(self, kernel, places, numbers, status)` adds a run of a kernel. With it come
    # library kernels (torch_tenon.launch), kernels written by hand and generated ones.

    def commit(self):
        """Starts what was added, without waiting for it; gives an event."""
        # TODO: submit to the driver, and give an event of its own with `done()` and `seconds()`. A
        # driver that blocks needs a thread: torch_tenon.targets.thread.QueueThread is one.
        commands, self.commands = self.commands, []
        for dst, src, nbytes in commands:
            ctypes.memmove(self.address(dst), self.address(src), nbytes)
        return Passed()

    def wait(self, event):
        """Returns when the device has passed `event`."""
        # TODO: ask the driver to wait, without the interpreter's lock. Raise what it failed with,
        # each time. A `Passed` is over already.

    def address(self, end):
        if isinstance(end, int):
            return end
        handle, offset = end
        return ctypes.addressof(self.memory[handle]) + offset


class @CLASS@(Target):
    """The hardware. Methods may be called from any thread; devices are counted from 0."""

    name = "@NAME@"
    host_memory = False  # True where a handle is an address that the host can read and write

    # Ops that the hardware's library runs, by name with overload: "aten::mm" and a function that
    # takes the op's arguments, on the device, and gives its results, or NotImplemented.
    library = {}

    # What makes kernels: see torch_tenon/compiler/backend.py. Without one nothing is compiled.
    backend = None

    def __init__(self):
        # TODO: open the driver. This runs when PyTorch is imported, so leave to the first use what
        # takes long. Raise torch_tenon.targets.target.TargetError, saying what is missing.
        self.memory = {}
        self.handles = itertools.count(1)
        self.lock = threading.Lock()
        self.queues = [@CLASS@Queue(self.memory)]

    def devices(self):
        """How many there are."""
        return len(self.queues)

    def total_memory(self, device):
        """The bytes that a device has in all."""
        return 4 << 30  # TODO: ask the driver

    def allocate(self, nbytes, device):
        """A handle of new bytes, any number but 0; 0 when there are no more."""
        # TODO: the driver's memory, aligned to 512 bytes.
        with self.lock:
            handle = next(self.handles)
            self.memory[handle] = (ctypes.c_char * nbytes)()
        return handle

    def free(self, handle, device):
        """Takes back what `allocate` gave."""
        with self.lock:
            del self.memory[handle]

    def queue(self, device):
        """The device's queue, always the same one."""
        return self.queues[device]
'''

TESTS = '''"""Tests of the target @NAME@.

PyTorch's own suite is run by `tenon conformance --target @FILE@:@CLASS@`.
"""

import os
from pathlib import Path

# PyTorch loads the device when it is imported.
os.environ["TENON_TARGET"] = f"{Path(__file__).parent / '@FILE@'}:@CLASS@"

import torch


def test_it_is_the_target():
    assert torch.tenon.target_name() == "@NAME@"


def test_copies_there_and_back():
    x = torch.randn(3, 5)
    assert torch.equal(x.to("tenon").t()[1:].cpu(), x.t()[1:])


def test_memory_is_given_back():
    x = torch.ones(1000, device="tenon").sum()
    assert x.item() == 1000
    before = torch.tenon.memory_allocated()
    y = torch.ones(1000, device="tenon") + 1
    assert y[-1].item() == 2 and torch.tenon.memory_allocated() > before
    del y
    torch.tenon.synchronize()
    assert torch.tenon.memory_allocated() == before


def test_it_trains():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    model = model.to("tenon")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(32, 8, device="tenon"), torch.randn(32, 1, device="tenon")
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
'''


class BadName(ValueError):
    """No file can be written for that name; the text says why."""


def write(name: str, folder: Path) -> list[Path]:
    """Writes NAME.py and test_NAME.py into a folder; returns their paths, the target's first.

    Raises BadName for what is no name of a Python module, or hides one of Python's or the targets'
    that are built in; FileExistsError where a file is there already, and nothing is written then.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise BadName(
            f"{name!r} cannot be the name of a target: it becomes a module's, so write lower-case "
            "letters, digits and underscores, beginning with a letter"
        )
    if name in BUILT_IN or name in sys.stdlib_module_names or name in ("torch", "torch_tenon"):
        raise BadName(f"{name!r} is the name of something else already; choose another one")
    paths = [folder / f"{name}.py", folder / f"test_{name}.py"]
    for path in paths:
        if path.exists():
            raise FileExistsError(f"{path} is there already; nothing was written")
    words = {"@NAME@": name, "@FILE@": f"{name}.py", "@CLASS@": class_of(name)}
    for path, text in zip(paths, (TARGET, TESTS), strict=True):
        for mark, word in words.items():
            text = text.replace(mark, word)
        path.write_text(text)
    return paths


def class_of(name: str) -> str:
    """`my_npu` as `MyNpu`."""
    return "".join(part.capitalize() for part in name.split("_"))
