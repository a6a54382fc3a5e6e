"""Doing something with a module right after it has been imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]


def after_import(actions: Mapping[str, Action]) -> None:
    """Calls each action with the module of its name: now where that is loaded, else once it is."""
    waiting = {}
    for name, action in actions.items():
        loaded = sys.modules.get(name)
        if loaded is None:
            waiting[name] = action
        elif getattr(loaded.__spec__, "_initializing", False):
            # It is being imported, and has imported torch.
            _act_at_the_end(loaded, action)
        else:
            action(loaded)
    sys.meta_path.insert(0, _Finder(waiting))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that something waits for, and acts when their body has run."""

    def __init__(self, waiting: dict[str, Action]) -> None:
        self.waiting = waiting

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module as it is, but for what happens after its body ran."""
        action = self.waiting.pop(fullname, None)
        if action is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def execute_and_act(module: ModuleType) -> None:
                execute(module)
                action(module)

            loader.exec_module = execute_and_act
        return spec


class _EndOfImport(ModuleSpec):
    """The spec of a module whose body runs; when Python says that it has, something is done."""

    @property
    def _initializing(self) -> bool:
        return bool(self.__dict__["_initializing"])

    @_initializing.setter
    def _initializing(self, running: bool) -> None:
        self.__dict__["_initializing"] = running
        if not running:
            action = self.__dict__.pop("_action")
            self.__class__ = ModuleSpec  # type: ignore[assignment]
            if self.name in sys.modules:  # else its body has failed
                action(sys.modules[self.name])


def _act_at_the_end(module: ModuleType, action: Action) -> None:
    spec: Any = module.__spec__
    spec._action = action
    spec.__class__ = _EndOfImport
