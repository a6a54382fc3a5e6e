"""What a target has beside its driver where the hardware's library multiplies matrices."""

from torch_tenon.targets.starts.driver import LAUNCH

PARTS = {
    "@WHAT@": "It multiplies\n"
    "matrices of float32 by a kernel of its own; every other op falls back to the host.",
    "@IMPORTS@": """import ctypes
import itertools
import math
import threading

import numpy as np
import torch

import torch_tenon
from torch_tenon.targets.target import Passed, Target
""",
    "@KERNELS@": '''

def matmul(memory, numbers, status):
    """A product of matrices in float32: the place of the hardware's own."""
    m, k, n = numbers
    result, a, b = (
        np.frombuffer((ctypes.c_float * math.prod(shape)).from_address(address), np.float32)
        for address, shape in zip(memory, ((m, n), (m, k), (k, n)), strict=True)
    )
    np.matmul(a.reshape(m, k), b.reshape(k, n), out=result.reshape(m, n))


# What a launch names, by number. TODO: your driver's kernels, loaded from their binaries.
KERNELS = [matmul]


def mm(a, b):
    """`aten::mm` by the kernel, or NotImplemented for what the host multiplies or refuses."""
    fits = a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0]
    if not fits or {a.dtype, b.dtype} != {torch.float32} or 0 in (*a.shape, *b.shape):
        return NotImplemented
    result = a.new_empty(a.shape[0], b.shape[1])
    numbers = [*a.shape, b.shape[1]]
    # Enqueued behind what makes the operands; nobody waits.
    torch_tenon.launch(KERNELS.index(matmul), [result, a.contiguous(), b.contiguous()], numbers)
    return result
''',
    "@LAUNCH@": LAUNCH,
    "@LIBRARY@": '{"aten::mm": mm}',
    "@BACKEND@": "None",
}
