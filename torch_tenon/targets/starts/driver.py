"""The text of a target: its memory and its queue, with places for what a start adds."""

TEXT = '''"""The target @NAME@: what stands behind the device `tenon`.

    TENON_TARGET=@FILE@:@CLASS@ python script.py

It works as it is, on memory of its own that nobody but its queue reaches. @WHAT@

Replace what is marked with TODO by calls of your driver, in this order, and run the tests beside
this file after each.
"""

@IMPORTS@@KERNELS@

class @CLASS@Queue:
    """The device's queue. The core calls it from any thread, one at a time.

    A place is a handle that `allocate` gave and an offset in bytes; an integer is an address of the
    host's, whose memory stays until the event of the next `commit` is done.
    """

    # True where the device can run the host's code on its memory; it then needs a method `call`.
    runs_calls = False

    def __init__(self, memory):
        self.memory = memory
        self.commands = []  # the open command buffer: functions and their arguments

    def copy(self, dst, src, nbytes):
        """Adds a copy to the open command buffer."""
        # TODO: enqueue the driver's copy. Either end, or both, may be on the device.
        self.commands.append((ctypes.memmove, self.address(dst), self.address(src), nbytes))
@LAUNCH@
    def commit(self):
        """Starts what was added, without waiting for it; gives an event."""
        # TODO: submit to the driver, and give an event of its own with `done()` and `seconds()`. A
        # driver that blocks needs a thread: torch_tenon.targets.thread.QueueThread is one.
        commands, self.commands = self.commands, []
        for function, *arguments in commands:
            function(*arguments)
        return Passed()

    def wait(self, event):
        """Returns when the device has passed `event`."""
        # TODO: ask the driver to wait, without the interpreter's lock. Raise what it failed with,
        # each time. A `Passed` is over already.

    def address(self, end):
        if end is None or isinstance(end, int):
            return end
        handle, offset = end
        return ctypes.addressof(self.memory[handle]) + offset


class @CLASS@(Target):
    """The hardware. Methods may be called from any thread; devices are counted from 0."""

    name = "@NAME@"
    host_memory = False  # True where a handle is an address that the host can read and write

    # Ops that the hardware's library runs, by name with overload: "aten::mm" and a function that
    # takes the op's arguments, on the device, and gives its results, or NotImplemented.
    library = @LIBRARY@

    # What makes kernels: see torch_tenon/compiler/backend.py. Without one nothing is compiled.
    backend = @BACKEND@

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

ALONE = {
    "@WHAT@": "Every op falls back to\nthe host.",
    "@IMPORTS@": """import ctypes
import itertools
import threading

from torch_tenon.targets.target import Passed, Target
""",
    "@KERNELS@": "",
    "@LAUNCH@": """
    # TODO: `launch(self, launch)` adds a run of a kernel. With it come library kernels
    # (torch_tenon.launch), kernels written by hand and generated ones. `tenon new-target --start
    # library` and `--start loops` write targets with them.
""",
    "@LIBRARY@": "{}",
    "@BACKEND@": "None",
}

LAUNCH = '''
    def launch(self, launch):
        """Adds a run of a kernel to the open command buffer.

        A `Launch` is the kernel, by its number, and its arguments: places of memory, and numbers
        by value. For hardware with a grid it has `grid`, `group` and `scratch` as well, where the
        kernel has them. See `help(torch_tenon.targets.target.Launch)`.
        """
        # TODO: enqueue the driver's launch.
        places, numbers = launch.places, launch.numbers
        memory = (ctypes.c_void_p * len(places))(*map(self.address, places))
        words = (ctypes.c_int64 * len(numbers))(*numbers)
        self.commands.append((KERNELS[launch.kernel], memory, words, launch.status))
'''
