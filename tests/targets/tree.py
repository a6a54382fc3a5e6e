"""A target whose kernels are the loop trees themselves, run one iteration after the other.

No language and no compiler: what a backend has to have is here on one page. It is an oracle for
what comes before the backends, and takes a millisecond for each hundred numbers:

    TENON_TARGET=tests/targets/tree.py:TreeTarget python -m tests.compiler.op_db --samples 1
"""

import ctypes
import os
import sys
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests import philox
from tests.compiler.loops.evaluate import run
from torch_tenon.compiler.backend import Backend
from torch_tenon.compiler.kernel import CHECKS, STATUS_WORDS, Kernel
from torch_tenon.compiler.loops.lower import lower
from torch_tenon.compiler.loops.parameters import parameters
from torch_tenon.compiler.loops.tree import Tree
from torch_tenon.targets.target import Target

FUNCTION = ctypes.CFUNCTYPE(
    None, *(ctypes.POINTER(ctypes.c_int64) for _ in ("pointers", "sizes", "status"))
)
MOST = 1 << 40  # bytes from an address that a kernel could reach
functions = []  # for the life of the process


class TreeBackend(Backend):
    """Lowers a group to a tree, and changes nothing there."""

    name = "tree"

    def kernel(self, group, kept):
        """The tree as it comes."""
        tree = lower(group, kept)
        found = parameters(tree)
        kernel = Kernel.of(group, kept, "", found.storages, found.sizes)
        kernel.tree, kernel.checks = tree, [f.calls for f in found.failures]
        return kernel

    def compile(self, kernels):
        """Addresses of functions of this process that run them."""
        return [_address(kernel.tree) for kernel in kernels]


def _address(tree: Tree) -> int:
    found = parameters(tree)

    def function(pointers, sizes, status) -> None:
        try:
            launch(pointers, sizes, status)
        except BaseException:
            traceback.print_exc()
            os._exit(70)  # nobody is there to raise to

    def launch(pointers, sizes, status) -> None:
        arrays = [_memory(pointers[k]) for k in range(len(found.storages))]
        failed: list[tuple[int, int, int]] = []
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            run(
                tree,
                arrays,
                [sizes[k] for k in range(len(found.sizes))],
                failed,
                draw=philox.number,
            )
        for number, value, size in reversed(failed):
            words = CHECKS[found.failures[number].message], value, size
            for k, word in enumerate(words):
                status[number * STATUS_WORDS + k] = word

    functions.append(FUNCTION(function))
    address = ctypes.cast(functions[-1], ctypes.c_void_p).value
    assert address is not None
    return address


def _memory(address: int) -> torch.Tensor:
    return torch.frombuffer((ctypes.c_uint8 * MOST).from_address(address), dtype=torch.uint8)


class TreeTarget(Target):
    """The host's memory, with that backend."""

    name = "tree"
    backend = TreeBackend()

    def total_memory(self, device: int) -> int:
        """In bytes."""
        return 1 << 34

    def allocate(self, nbytes: int, device: int) -> int:
        """From the system."""
        found = ctypes.c_void_p()
        failed = ctypes.CDLL(None).posix_memalign(
            ctypes.byref(found), ctypes.c_size_t(64), ctypes.c_size_t(nbytes)
        )
        return 0 if failed else found.value or 0

    def free(self, pointer: int, device: int) -> None:
        """Gives it back."""
        ctypes.CDLL(None).free(ctypes.c_void_p(pointer))
