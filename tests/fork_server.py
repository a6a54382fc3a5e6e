"""Forks processes that have PyTorch already, and nothing of the device.

PyTorch takes longer to import than most programs of the tests run. A child takes its environment,
directory and output before it begins. What the server has imported is not there until the program
imports it: PyTorch loads the device then, as its own import does. A child ends as any interpreter.

The server computes nothing: what OpenMP has of threads does not survive a fork.
"""

import contextlib
import gc
import importlib.abc
import importlib.machinery
import json
import os
import runpy
import select
import socket
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: What it imports; the second one of these takes plans to make.
PACKAGES = ("torch", "sympy")


class Kept(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Packages that were imported before the fork, found where the program imports them."""

    def __init__(self) -> None:
        self.packages: dict[str, dict[str, ModuleType]] = {}

    def keep(self, package: str) -> None:
        """Imports it and takes it away again, with all that it imports but Python's own modules."""
        if package in self.packages:
            return
        before = set(sys.modules)
        importlib.import_module(package)
        found = {}
        for name in set(sys.modules) - before:
            if name.partition(".")[0] not in sys.stdlib_module_names:
                found[name] = sys.modules[name]
        self.packages[package] = found
        # What one of them imports may be imported by itself, and then is nobody else's.
        for top in {name.partition(".")[0] for name in found} - {package}:
            modules = {k: v for k, v in found.items() if k.partition(".")[0] == top}
            self.packages.setdefault(top, modules)

    def hide(self) -> None:
        """From now on nothing of it has been imported."""
        for modules in self.packages.values():
            for name in modules:
                sys.modules.pop(name, None)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Of a package that is kept."""
        modules = self.packages.get(fullname)
        if modules is None:
            return None
        known: Any = modules[fullname].__spec__
        spec = ModuleSpec(fullname, self, origin=known.origin)
        spec.submodule_search_locations = known.submodule_search_locations
        spec.has_location = known.has_location
        spec.loader_state = known
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The one that is kept."""
        return self.packages[spec.name][spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Its modules are there, and PyTorch loads the device."""
        assert module.__spec__ is not None
        module.__spec__ = spec = module.__spec__.loader_state
        for name, kept in self.packages[module.__name__].items():
            sys.modules.setdefault(name, kept)
        if module.__name__ == "torch" and module._is_device_backend_autoload_enabled():
            spec._initializing = True  # as Python's import has it until the body has run
            try:
                module._import_device_backends()
            finally:
                spec._initializing = False


def child(connection: socket.socket) -> dict[str, Any] | None:
    """Serves until it is in a child: what to run there; None when nobody asks any more."""
    gc.freeze()  # a collection in a child would copy every page of what is there
    waits = select.poll()
    waits.register(connection, select.POLLIN)
    running: dict[int, tuple[int, int]] = {}  # by what tells of its end: process, who hears of it
    while True:
        for ready, _ in waits.poll():
            if ready in running:
                pid, hears = running.pop(ready)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(BrokenPipeError):  # nobody wants to know
                    os.write(hears, str(status).encode())
                waits.unregister(ready)
                os.close(ready)
                os.close(hears)
                continue
            message, files, *_ = socket.recv_fds(connection, 1 << 20, 3)
            if not message:
                return None
            *outputs, hears = files
            pid = os.fork()
            if pid == 0:
                for number, file in enumerate(outputs, start=1):
                    os.dup2(file, number)
                connection.detach()
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                return json.loads(message)
            for file in outputs:
                os.close(file)
            with contextlib.suppress(BrokenPipeError):
                os.write(hears, f"{pid}\n".encode())
            ends = os.pidfd_open(pid)
            waits.register(ends, select.POLLIN)
            running[ends] = pid, hears


def be_main(command: list[str], folder: str, environment: dict[str, str]) -> None:
    """Does what `python` with these arguments would, in a directory."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.modules.pop(__name__, None)
    main = sys.modules["__main__"].__dict__
    names = {"__name__": "__main__", "__builtins__": main["__builtins__"], "__doc__": None}
    names.update(
        __annotations__={},
        __spec__=None,
        __package__=None,
        __loader__=importlib.machinery.BuiltinImporter,
    )
    main.clear()
    main.update(names)
    sys.orig_argv[1:] = command
    search = [os.path.abspath(p) for p in environment.get("PYTHONPATH", "").split(":") if p]
    sys.path[1:1] = dict.fromkeys(search)
    if command[0] == "-m":
        sys.path[0] = os.getcwd()
        sys.argv[:] = ["-m", *command[2:]]
        runpy._run_module_as_main(command[1])  # type: ignore[attr-defined]
        return
    if command[0] == "-c":
        sys.path[0] = ""
        sys.argv[:] = ["-c", *command[2:]]
        code = compile(command[1], "<string>", "exec")
    else:
        path = os.path.abspath(command[0])
        sys.path[0] = os.path.dirname(os.path.realpath(path))
        sys.argv[:] = command
        main.update(__file__=path, __cached__=None)
        main["__loader__"] = importlib.machinery.SourceFileLoader("__main__", path)
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec")
    exec(code, main)


def main(number: int) -> None:
    """Serves who has the other end of a socket."""
    kept = Kept()
    for package in PACKAGES:
        kept.keep(package)
    if os.fork() == 0:  # before which the library of NumPy's products ends its threads
        os._exit(0)
    os.wait()
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads run, of which a child would have one"
    work = child(socket.socket(fileno=number))
    if work is not None:
        kept.hide()
        be_main(**work)
