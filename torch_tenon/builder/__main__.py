"""`python -m torch_tenon.builder SOCKET`: the builder process; the core starts it."""

import gc
import os
import sys

from torch_tenon.builder.server import serve

if __name__ == "__main__":
    # Pipes and locks of the program that started it, which may end before.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    gc.disable()  # until the compiler is loaded: nothing of that is garbage
    serve(sys.argv[1])
