"""The targets, and how one is found by its name."""

import functools
import importlib
import importlib.util
import inspect
import sys
from importlib.metadata import entry_points
from pathlib import Path

from torch_tenon.targets.library import LibraryTarget
from torch_tenon.targets.target import Target, TargetError

BUILT_IN = {
    "cpu": "torch_tenon.targets.cpu:CpuTarget",
    "opencl": "torch_tenon.targets.opencl:OpenCLTarget",
}
HOST = "cpu"
ENTRY_POINTS = "torch_tenon.targets"
LIBRARY = ".so"


def files_of(target: Target) -> list[str]:
    """The files with the code of a target, of its backend and of its library's functions. The file
    of a program that is a target itself is none of them."""
    members: list[object] = list(target.library.values())
    for part in (target, target.backend):
        members += [member for cls in type(part).__mro__ for member in vars(cls).values()]
    found = set()
    for member in members:
        for name in ("__func__", "fget", "func"):  # of static methods and properties
            member = getattr(member, name, member)
        code = getattr(inspect.unwrap(member) if callable(member) else member, "__code__", None)
        if code is not None:
            found.add(str(code.co_filename))
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return sorted(file for file in found if file != main and Path(file).is_file())


def load(name: str) -> Target:
    """Makes the target that TENON_TARGET names.

    `name` is a built-in target, an entry point of the group `torch_tenon.targets`, `module:Class`,
    `path/to/file.py:Class` or `path/to/library.so` (`include/tenon.h`). Raises ValueError when
    nothing is there by that name, TypeError when it is not a Target, TargetError when the target
    cannot be made.
    """
    if name.endswith(LIBRARY):
        if not Path(name).is_file():
            raise ValueError(f"TENON_TARGET={name!r}: there is no file {name}")
        return LibraryTarget(name)
    cls = _find(BUILT_IN.get(name, name))
    if not (isinstance(cls, type) and issubclass(cls, Target)):
        raise TypeError(f"TENON_TARGET={name!r} names {cls!r}, which is not a Target")
    target = cls()
    if not target.host_memory and target.native is None:
        _check_queue(target)
    return target


def known() -> list[str]:
    """The names of the targets that are built in or installed."""
    return [*BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINTS))]


@functools.cache
def host() -> Target:
    """The target that is the host: what compiles graphs of the host's own tensors."""
    return load(HOST)


def _check_queue(target: Target) -> None:
    """Raises TargetError where the queue lacks what the core calls."""
    queue = target.queue(0)
    if lacking := [n for n in ("runs_calls", "copy", "commit", "wait") if not hasattr(queue, n)]:
        raise TargetError(
            f"the queue of the target {target.name!r} lacks `{'`, `'.join(lacking)}`: "
            "torch_tenon.targets.target.Queue says what each is for"
        )
    if (launch := getattr(queue, "launch", None)) is None:
        return
    found = inspect.signature(launch)
    try:
        found.bind(None)
    except TypeError:
        raise TargetError(
            f"the queue of the target {target.name!r} has `launch{found}`, and the core calls "
            "`launch(launch)`: one torch_tenon.targets.target.Launch, which has `kernel`, "
            "`places`, `numbers` and `status`"
        ) from None


def _find(name: str) -> object:
    location, colon, attribute = name.rpartition(":")
    if not colon:
        found = entry_points(group=ENTRY_POINTS, name=name)
        if not found:
            raise ValueError(
                f"TENON_TARGET={name!r}: no such target; there are {', '.join(known())}, and "
                "`module:Class`, `path/to/file.py:Class` or `path/to/library.so` name one that is "
                "not installed"
            )
        return next(iter(found)).load()
    if location.endswith(".py"):
        path = Path(location)
        if not path.is_file():
            raise ValueError(f"TENON_TARGET={name!r}: there is no file {path}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # As for a script: it may import what lies beside it.
        sys.path.insert(0, str(path.parent.resolve()))
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.pop(0)
    else:
        module = importlib.import_module(location)
    if not hasattr(module, attribute):
        raise ValueError(f"TENON_TARGET={name!r}: {location} has no {attribute}")
    return getattr(module, attribute)
