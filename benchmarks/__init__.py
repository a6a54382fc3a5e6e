"""The benchmark."""

import os

# The profiler, which counts memory, is quiet; PyTorch reads these when it is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
