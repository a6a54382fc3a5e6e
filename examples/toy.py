"""A toy accelerator: memory of its own, a queue, and a machine of five instructions."""

import ctypes
import functools
import itertools

import numpy as np
import torch

import torch_tenon
from torch_tenon.compiler.backend import Backend
from torch_tenon.targets.target import Passed, Target

TILE = 256  # numbers in a register
PROGRAMS = []  # what a launch names: functions from numbers to instructions


class Bare(Target):
    name, host_memory, runs_calls = "toy", False, False

    def __init__(self):
        self.memory, self.commands, self.handles = {}, [], itertools.count(1)

    def total_memory(self, device):
        return 1 << 30

    def allocate(self, nbytes, device):
        self.memory[handle := next(self.handles)] = np.zeros(nbytes, np.uint8)
        return handle

    def free(self, handle, device):
        del self.memory[handle]

    def queue(self, device):
        return self  # it has one device, and is the queue of that

    def bytes(self, end, nbytes=None):
        if isinstance(end, int):  # an address of the host's
            return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(end), np.uint8)
        return self.memory[end[0]][end[1] :][:nbytes]  # a handle and an offset

    def copy(self, dst, src, nbytes):
        self.commands.append(lambda: np.copyto(self.bytes(dst, nbytes), self.bytes(src, nbytes)))

    def launch(self, launch):
        self.commands.append(lambda: self.run(launch))

    def run(self, launch):
        memory = [self.bytes(place).view(np.float32) for place in launch.places]
        r = {}  # registers
        for op, to, *x in PROGRAMS[launch.kernel](*launch.numbers):
            if op == "load":
                r[to] = memory[x[0]][x[1] : x[1] + x[2]].copy()
            elif op == "store":
                memory[x[0]][x[1] : x[1] + x[2]] = r[to]
            else:
                a, b = (r[y] if isinstance(y, str) else np.float32(y) for y in x)
                r[to] = a + b if op == "add" else a * b if op == "mul" else r[to] + a * b

    def commit(self):
        while self.commands:
            self.commands.pop(0)()
        return Passed()

    def wait(self, event): ...


@PROGRAMS.append
def matmul(m, k, n):
    for i, j in itertools.product(range(m), range(0, n, TILE)):
        width = min(TILE, n - j)
        for step in range(k):
            yield "load", "a", 1, i * k + step, 1
            yield "load", "b", 2, step * n + j, width
            yield "mac" if step else "mul", "sum", "a", "b"
        yield "store", "sum", 0, i * n + j, width


def mm(a, b):
    fits = a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0]
    if not fits or {a.dtype, b.dtype} != {torch.float32} or 0 in (*a.shape, *b.shape):
        return NotImplemented  # the host computes, or says what is wrong
    out = a.new_empty(a.shape[0], b.shape[1])
    torch_tenon.launch(0, [out, a.contiguous(), b.contiguous()], [*a.shape, b.shape[1]])
    return out


class WithLibrary(Bare):
    library = {"aten::mm": mm}  # noqa: RUF012


@functools.cache
def assemble(source):
    lines = [line.split() for line in source.splitlines()]

    def program(*numbers):
        for at in range(0, numbers[-1], TILE):
            part = at, min(TILE, numbers[-1] - at)
            for op, to, *x in lines:
                values = [y if y[0] == "r" else float(y) for y in x]
                yield op, to, *((int(x[0]), *part) if op in ("load", "store") else values)

    PROGRAMS.append(program)
    return len(PROGRAMS) - 1


class Assembler(Backend):
    name = "toy"

    def handwritten(self, code):
        return code.text

    def compile(self, kernels):
        return [assemble(kernel.source) for kernel in kernels]


class WithKernels(WithLibrary):
    backend = Assembler()


class Compiler(Assembler):
    def fusion_problem(self, members):
        ours = {{s.op for s in m.node.trace} <= {"load", "constant", "add", "mul"} for m in members}
        return "the host computes one of them" if len(ours) > 1 else None

    def kernel(self, group, kept):
        from torch_tenon.compiler.kernel import Kernel
        from torch_tenon.compiler.loops.lower import lower
        from torch_tenon.compiler.loops.tree import Constant, For, Let, Load, Store
        from torch_tenon.ir.index import var

        (loop, *more), lines, names, memory = lower(group, kept).body, [], {}, {}
        for s in loop.body if isinstance(loop, For) and not more else [loop]:
            names[s] = f"r{len(names)}"
            match s:
                case Let("add" | "mul", (Constant() | Let() | Load(), Constant() | Let() | Load())):
                    words = s.op, names[s], *(names.get(x) or x.value for x in s.args)
                case Load(m, i, mask=None) | Store(m, i, Let() | Load(), "store") if (
                    m.dtype is torch.float32 and isinstance(loop, For) and i == var(loop.symbol)
                ):
                    place = memory.setdefault(m.storage, len(memory))
                    words = type(s).__name__.lower(), names[getattr(s, "value", s)], place
                case _:
                    raise NotImplementedError(f"the toy cannot compute {s}")
            lines.append(" ".join(map(str, words)))
        return Kernel.of(group, kept, "\n".join(lines), list(memory), [loop.stops[0]])


class Toy(WithLibrary):
    backend = Compiler()
