"""`python -m torch_tenon.builder SOCKET`: the builder process; the core starts it."""

import sys

from torch_tenon.builder.server import serve

if __name__ == "__main__":
    serve(sys.argv[1])
