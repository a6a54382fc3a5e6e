"""The toy of docs/target.md, on a thread, and wrong in several ways, for tests of what finds it."""

import os
import signal
import sys
import tempfile
import time
import types
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from toy import PROGRAMS, Compiler, Toy

from torch_tenon.targets import starts
from torch_tenon.targets.thread import QueueThread

LANES = 32


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


class _Raises(Compiler):
    def kernel(self, group, kept):
        """Looks for what is not there."""
        return {}["a register"]


class GeneratorRaises(Toy):
    """Its generator has a fault: all runs on the host, with the right results."""

    backend = _Raises()


class _GivesNoKernel(Compiler):
    def kernel(self, group, kept):
        """The source alone."""
        return super().kernel(group, kept).source


class GeneratorGivesNoKernel(Toy):
    """As `GeneratorRaises`, by another fault."""

    backend = _GivesNoKernel()


class _GivesNoNumber(Compiler):
    def compile(self, kernels):
        """Numbers as texts."""
        return [str(number) for number in super().compile(kernels)]


class CompilerGivesNoNumber(Toy):
    """What a launch cannot take."""

    backend = _GivesNoNumber()


class _GivesTooFew(Compiler):
    def compile(self, kernels):
        """All but one."""
        return super().compile(kernels)[1:]


class CompilerGivesTooFew(Toy):
    """A number less than there are kernels."""

    backend = _GivesTooFew()


def _loops():
    """The start with generated loops, as `tenon new-target` writes it."""
    with tempfile.TemporaryDirectory() as folder:
        path, _ = starts.write("npu", Path(folder), "loops")
        module = types.ModuleType("npu")
        exec(compile(path.read_text(), str(path), "exec"), vars(module))
    return module


npu, short = _loops(), _loops()


class Loops(npu.Npu):
    """Right: reductions and other loops run by kernels."""


class LoopsComputeNothing(npu.Npu):
    """No kernel does anything."""

    def __init__(self):
        super().__init__()
        self.queues[0].launch = lambda launch: None


class _WithoutTheRest(short.Generator):
    def statement(self, s):
        """Of a loop that reduces the first elements."""
        if isinstance(s, short.For) and s.kind == "reduce":
            s = s.like(stops=(*s.stops, s.starts[0] + LANES))
        return super().statement(s)


short.Generator = _WithoutTheRest


class ReductionsLoseTheRest(short.Npu):
    """What is beyond the lanes of one group is no part of a reduction."""
