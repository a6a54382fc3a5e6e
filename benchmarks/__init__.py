"""The benchmark."""

import os

# The profiler, which counts memory, is quiet; PyTorch reads these when it is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
# The threads of NumPy's OpenBLAS would go on waiting awake, on a processor that the next library in
# turn needs: 2^4 cycles are the least that it takes.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
