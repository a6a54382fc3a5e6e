"""Forks processes that have PyTorch already, and nothing of the device.

PyTorch takes longer to import than most programs of the tests run. A child has its own environment
and output before it loads the device, and ends as any interpreter does.
"""

import gc
import json
import os
import socket
import sys

import torch


def child(connection: socket.socket) -> dict | None:
    """Serves until it is in a child: what to run there; None when nobody asks any more."""
    gc.freeze()  # a collection in a child would copy every page of what is there
    while True:
        message, outputs, *_ = socket.recv_fds(connection, 1 << 20, 2)
        if not message:
            return None
        pid = os.fork()
        if pid == 0:
            for number, file in enumerate(outputs, start=1):
                os.dup2(file, number)
        for file in outputs:
            os.close(file)
        if pid == 0:
            connection.close()
            return json.loads(message)
        connection.send(str(pid).encode())
        connection.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def be_main(work: dict) -> None:
    """Does what `python -c` would."""
    os.environ.clear()
    os.environ.update(work["environment"])
    sys.argv[:] = ["-c", *work["arguments"]]
    sys.path[0] = ""
    main = sys.modules["__main__"].__dict__
    load, enabled = torch._import_device_backends, torch._is_device_backend_autoload_enabled
    names = {"__name__": "__main__", "__builtins__": main["__builtins__"], "__spec__": None}
    main.clear()
    main.update(names)
    if enabled():
        load()
    exec(compile(work["code"], "<string>", "exec"), main)


if __name__ == "__main__":
    _work = child(socket.socket(fileno=int(sys.argv[1])))
    if _work is not None:
        be_main(_work)
