"""The toy of docs/target.md, on a thread, and wrong in five ways, for tests of what finds it."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from toy import PROGRAMS, Toy

from torch_tenon.targets.thread import QueueThread


class WithThread(Toy):
    """Right, by a thread that is there from the start: no child of a fork has it."""

    def __init__(self):
        super().__init__()
        self.thread = QueueThread("toy")
        self.thread.start([]).wait()

    def commit(self):
        """Hands over."""
        commands, self.commands = self.commands, []
        return self.thread.start(commands)

    def wait(self, event):
        """Until the thread is there."""
        event.wait()


class ComputesNothing(Toy):
    """No instruction does anything."""

    def run(self, launch):
        """Reads them."""


class AddsALittle(Toy):
    """What is stored is a thousandth too much."""

    def run(self, launch):
        """Adds it to what was stored."""
        super().run(launch)
        for op, _, *x in PROGRAMS[launch.kernel](*launch.numbers):
            if op == "store":
                memory = self.bytes(launch.places[x[0]]).view(np.float32)
                memory[x[1] : x[1] + x[2]] += 1e-3


class Faults(Toy):
    """Takes the process with it."""

    def run(self, launch):
        """Reaches for memory that is not there."""
        os.kill(os.getpid(), signal.SIGSEGV)


class Hangs(Toy):
    """Never comes to an end."""

    def run(self, launch):
        """Waits."""
        while True:
            time.sleep(1)


class LosesACopy(Toy):
    """Each fifth copy to the device does not arrive."""

    copies = 0

    def copy(self, dst, src, nbytes):
        """Copies, or not."""
        self.copies += isinstance(src, int)
        if not isinstance(src, int) or self.copies % 5:
            super().copy(dst, src, nbytes)
