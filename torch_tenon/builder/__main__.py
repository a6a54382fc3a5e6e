"""`python -m torch_tenon.builder SOCKET`: the builder process; the core starts it."""

import gc
import sys

from torch_tenon.builder.server import serve

if __name__ == "__main__":
    gc.disable()  # until the compiler is loaded: nothing of that is garbage
    serve(sys.argv[1])
