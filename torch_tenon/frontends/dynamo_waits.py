"""Dynamo, PyTorch's tracer of Python, is loaded when something is traced.

Loading it takes a second, and PyTorch does so in every script that trains: an optimizer loads it to
tell it where a graph ends, and decompositions and checkpoints to tell it not to look at them. While
it is not there nobody looks, so that there is nobody to tell. Whoever else imports it gets it.
"""

from __future__ import annotations

import functools
import importlib.abc
import logging
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Any

import torch

from torch_tenon.forked import LockOfProcess

_NAME = "torch._dynamo"
# Where PyTorch keeps what it calls in place of a function that Dynamo is not to look at.
_IN_PLACE = "__dynamo_disable"
# What tensors of symbolic sizes need: the rest of Dynamo takes ten times as long to load.
_PARTS = ("config", "utils", "exc", "source")


class _Waiting(ModuleType):
    """Stands for Dynamo until more of it is asked for than to be left alone."""

    def __init__(self) -> None:
        super().__init__(_NAME)
        self.__dict__.update(_told=[], _lock=LockOfProcess(), _alone=[], in_parts=False)

    def graph_break(self, *_: Any, **__: Any) -> None:
        """Nothing is traced."""
        self._step_aside()

    def disable(self, function: Callable[..., Any] | None = None, *args: Any, **kw: Any) -> Any:
        """The function as it is, for as long as nothing is traced."""
        if not callable(function):
            return self.__getattr__("disable")(function, *args, **kw)
        self._step_aside()
        self._told.append(function)
        return function

    def __getattr__(self, name: str) -> Any:
        # Also `__path__`, by which modules inside of it are found.
        return getattr(self._whole(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):  # Python's own, when it imports this
            super().__setattr__(name, value)
        else:
            setattr(self._whole(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._whole(), name)

    def give_way(self) -> None:
        """Makes room for Dynamo, which is told again by whoever calls something next."""
        self._step_aside()
        if vars(torch).get("_dynamo") is self:
            vars(torch).pop("_dynamo", None)
        while self._told:
            vars(self._told.pop()).pop(_IN_PLACE, None)
        while self._alone:  # Dynamo loads them again
            name = self._alone.pop()
            sys.modules.pop(name, None)
            vars(self).pop(name.removeprefix(f"{_NAME}."), None)

    def load_parts(self) -> None:
        """Loads the parts alone, as modules of a package that is not there otherwise."""
        found = _spec().submodule_search_locations
        assert found is not None
        if self._alone:
            return
        package = ModuleType(_NAME)
        vars(package).update(__path__=list(found), disable=self.disable)
        sys.modules[_NAME] = package
        try:
            parts = {name: importlib.import_module(f"{_NAME}.{name}") for name in _PARTS}
        finally:
            del sys.modules[_NAME]
            self._alone.extend(n for n in sys.modules if n.startswith(f"{_NAME}."))
        vars(self).update(parts)
        vars(torch)["_dynamo"] = self

    def _step_aside(self) -> None:
        # So that the next `import torch._dynamo`, which may be the program's, is seen.
        with self._lock:
            if sys.modules.get(_NAME) is self:
                del sys.modules[_NAME]

    def _whole(self) -> ModuleType:
        self.give_way()
        return importlib.import_module(_NAME)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what stands for Dynamo where PyTorch itself imports it, and Dynamo for all others."""

    def __init__(self) -> None:
        self.waiting = _Waiting()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """How to load what stands for Dynamo; None where it is Dynamo's turn."""
        if fullname != _NAME:
            return None
        if _importer(sys._getframe(1)).partition(".")[0] == "torch":
            return ModuleSpec(fullname, self)
        self.waiting.give_way()
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The one module that waits."""
        vars(self.waiting)["__path__"] = []  # which Python looks at, and must not load Dynamo
        return self.waiting

    def exec_module(self, module: ModuleType) -> None:
        """Gives it what those ask for who go through all modules."""
        del vars(module)["__path__"]
        spec = _spec()
        vars(module).update(__file__=spec.origin, __spec__=spec, __loader__=spec.loader)


@functools.cache
def _spec() -> ModuleSpec:
    """Where Dynamo is: optimizers ask at each step."""
    spec = PathFinder.find_spec(_NAME, torch.__path__)
    assert spec is not None
    return spec


def _importer(frame: FrameType | None) -> str:
    """The name of the module that imports, from Python's own frames on."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] not in ("importlib", "_frozen_importlib"):
            return name
        frame = frame.f_back
    return ""


def install() -> None:
    """Lets Dynamo wait, unless it has been loaded."""
    if _NAME not in sys.modules:
        sys.meta_path.insert(0, _Finder())


def stay_in_parts() -> None:
    """Lets `load_parts` load parts of Dynamo alone, in a process without a user's code: what that
    sets in a part would be lost when Dynamo is loaded."""
    for finder in sys.meta_path:
        if isinstance(finder, _Finder):
            finder.waiting.__dict__["in_parts"] = True


def load_parts() -> None:
    """Loads what tensors of symbolic sizes need of Dynamo, where `stay_in_parts` was called."""
    for finder in sys.meta_path:
        if isinstance(finder, _Finder) and finder.waiting.in_parts and _NAME not in sys.modules:
            finder.waiting.load_parts()
            # PyTorch's trace of sizes has stacks, and it loads the rest to shorten them.
            logging.getLogger("torch.__trace").handlers.clear()
