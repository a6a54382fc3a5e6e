"""C to functions of this process, kept on disk between processes.

Kernels are known by the hash of their source and of all else that their code depends on. Those of
a program that are not yet compiled go into shared objects together: starting the compiler costs
more than most kernels do.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch_tenon import _C, config
from torch_tenon.compiler.backend import KernelFile
from torch_tenon.compiler.bounded import BoundedCache
from torch_tenon.compiler.cache import Cache, digest
from torch_tenon.forked import LockOfProcess
from torch_tenon.targets.c_family import headers as shared
from torch_tenon.targets.cpu import toolchain
from torch_tenon.targets.cpu.toolchain import Toolchain, is_of_source
from torch_tenon.targets.target import CompileError

log = logging.getLogger("torch_tenon.code")
handwritten_log = logging.getLogger("torch_tenon.target")

TEMPLATES = Path(__file__).parent / "templates"
# What was compiled for this machine when the package was set up; everybody may read it.
SET_UP = Path(__file__).parent / "set_up"
_COMMENT = re.compile(r"/\*.*?\*/\n?", re.S)
MOST_FUNCTIONS = 4096  # that are found without a look at the cache on disk


class Function(int):
    """A kernel's address, which is good while this, or a plan that was made of it, is there."""

    owner: _C.SharedObject
    file: KernelFile | None  # where other processes find it

    @classmethod
    def of(cls, owner: _C.SharedObject, symbol: str, file: KernelFile | None) -> Function:
        """Raises AttributeError for an object without such a function."""
        address = owner.address(symbol)
        if address == 0:
            raise AttributeError(f"no function {symbol}")
        made = cls(address)
        made.owner, made.file = owner, file
        return made


def headers(source: str) -> list[str]:
    """The C that belongs before `source`."""
    return shared.headers(source, TEMPLATES)


@dataclass
class Unit:
    """What becomes one shared object: its text, the name and symbol of each function kept, and the
    text of those that were generated."""

    text: str
    symbols: Mapping[str, str]
    sources: Mapping[str, str] = field(default_factory=dict)
    by_hand: bool = False


@dataclass
class Run:
    """The C compiler at work on a unit, whose files are in a folder of its own."""

    unit: Unit
    folder: tempfile.TemporaryDirectory[str]
    target: Path
    process: subprocess.Popen[bytes] | None = None
    started_by: int = field(default_factory=os.getpid)


class CpuCompiler:
    """Compiles kernels and finds those compiled before.

    `cache` is where objects are kept; the rest is as for `Toolchain`. What compiles raises
    CompilerMissing without a compiler, CompileError with the compiler's words.
    """

    def __init__(
        self, cache: Cache, command: str = "gcc", seconds: int = toolchain.SECONDS
    ) -> None:
        self.cache, self.toolchain = cache, Toolchain(command, seconds)
        self.compiled = 0
        self._functions = BoundedCache[str, Function]("compiled kernels", MOST_FUNCTIONS)
        self._by_hand: dict[str, Function] = {}  # whoever has such an address keeps nothing else
        # Those that are kept on disk, as far as they are open.
        self._libraries = weakref.WeakValueDictionary[str, _C.SharedObject]()
        self._begun: list[Run] = []
        self.most_at_once = os.cpu_count() or 1  # runs of the C compiler
        self._lock = LockOfProcess()

    def symbol(self, source: str) -> str:
        """The name of the function that `source` (with `@NAME@` for its name) becomes: whatever its
        comments say, such as which ops it came from."""
        code = _COMMENT.sub("", source)
        return "k_" + digest(code, *headers(source), self.toolchain.identity)[:24]

    def functions(self, sources: Sequence[str]) -> list[Function]:
        """Each generated kernel, compiling those that are new."""
        with self._lock:
            names = [self.symbol(s) for s in sources]
            found: dict[str, Function] = {}
            missing = self._missing(names, sources, found)
            # What a process began is its own: a child that was forked meanwhile compiles anew.
            own = [run for run in self._begun if run.started_by == os.getpid()]
            begun = [run for run in own if not missing.keys().isdisjoint(run.unit.symbols)]
            for run in begun:
                self._begun.remove(run)
                found.update(self._finish([run]))
            missing = {n: source for n, source in missing.items() if n not in found}
            if missing:
                found.update(self._build(self._units(missing)))
            return [found[n] for n in names]

    def begin(self, sources: Sequence[str]) -> None:
        """Starts to compile those that are new: `functions` then waits for the rest of it."""
        with self._lock:
            missing = self._missing([self.symbol(s) for s in sources], sources, {})
            if missing:
                self._begun += self._start(self._units(missing))

    def _missing(
        self, names: Sequence[str], sources: Sequence[str], found: dict[str, Function]
    ) -> dict[str, str]:
        """Those that are to be compiled; the others are added to `found`."""
        missing = {}
        for name, source in zip(names, sources, strict=True):
            function = self._functions.get(name) or self._find(name, name)
            if function is None:
                missing[name] = source
            else:
                found[name] = function
        return missing

    def files(self, names: Sequence[str]) -> list[KernelFile] | None:
        """Where compiled functions are kept; None if one of them is not."""
        found = [self._by_hand.get(name) or self._functions.get(name) for name in names]
        files = [f.file for f in found if f is not None and f.file is not None]
        return files if len(files) == len(names) else None

    def name_by_hand(self, source: str, entry: str) -> str:
        """What the function `entry` of a source written by hand is known by."""
        return "h_" + digest(source, entry, self.toolchain.identity)[:24]

    def function(self, source: str, entry: str) -> Function:
        """The function `entry` of a source written by hand, for the life of this compiler.

        Raises CompileError also where the source has no such function.
        """
        with self._lock:
            name = self.name_by_hand(source, entry)
            found = self._by_hand.get(name) or self._find(name, entry)
            if found is None:
                handwritten_log.debug("compile %s", entry)
                found = self._build([Unit(source, {name: entry}, by_hand=True)])[name]
            self._by_hand[name] = found
            return found

    def _find(self, name: str, symbol: str) -> Function | None:
        """The function, if it was compiled before, and its object is whole and loads here."""
        entry = self.cache.read_json(f"{name}.json") or self._from_set_up(name)
        if entry is None:
            return None
        try:
            return self._load(entry["object"], entry["digest"], {name: symbol})[name]
        except (OSError, AttributeError) as error:
            log.warning("cache entry %s will be rebuilt: %s", entry["object"], error)
            self.cache.remove(entry["object"])
            return None

    def _from_set_up(self, name: str) -> dict[str, str] | None:
        """The entry of what was compiled at set-up, once a copy of it is in the cache; None where
        there is none, as for another compiler or processor, which are part of the name."""
        try:
            entry = json.loads((SET_UP / f"{name}.json").read_bytes())["body"]
            data = (SET_UP / entry["object"]).read_bytes()
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if digest(data) != entry["digest"] or self.cache.write(entry["object"], data) is None:
            return None
        self.cache.write_json(f"{name}.json", entry)
        return dict(entry)

    def _load(self, file: str, expected: str, symbols: Mapping[str, str]) -> dict[str, Function]:
        """Raises OSError for an object that is damaged or of another machine, AttributeError for
        one that lacks a function."""
        library = self._libraries.get(file)
        if library is None:
            data = self.cache.read(file)
            if data is None or digest(data) != expected:
                raise OSError("it is not there" if data is None else "it is damaged")
            library = _C.SharedObject(str(self.cache.path(file)), _C.checksum(data))
            self._libraries[file] = library
        path = f"{self.cache.directory.name}/{file}"
        return self._enter(
            {
                n: Function.of(library, s, KernelFile(path, s, library.checksum))
                for n, s in symbols.items()
            }
        )

    def _enter(self, functions: dict[str, Function]) -> dict[str, Function]:
        for name, function in functions.items():
            self._functions.put(name, function)
        return functions

    def _units(self, missing: Mapping[str, str]) -> list[Unit]:
        """The kernels in units of about one size: the compiler is one thread."""
        parts: list[dict[str, str]] = [{}]
        if len(missing) > 3:
            parts = [{} for _ in range(min(self.most_at_once, 8, len(missing) // 2))]
        for name, source in sorted(missing.items(), key=lambda t: -len(t[1])):
            min(parts, key=lambda u: sum(map(len, u.values())))[name] = source
        units = []
        for part in parts:
            bodies = [source.replace("@NAME@", name) for name, source in part.items()]
            text = "\n".join([*headers("".join(bodies)), *bodies])
            sources = {name: source.replace("@NAME@", name) for name, source in part.items()}
            units.append(Unit(text, {name: name for name in part}, sources))
        return units

    def _build(self, units: Sequence[Unit]) -> dict[str, Function]:
        return self._finish(self._start(units))

    def _start(self, units: Sequence[Unit]) -> list[Run]:
        started: list[Run] = []
        try:
            for unit in units:
                folder = tempfile.TemporaryDirectory(prefix="tenon-")
                source = Path(folder.name) / "unit.c"
                source.write_text(unit.text)
                target = source.with_suffix(".so")
                run = Run(unit, folder, target)
                started.append(run)
                run.process = self.toolchain.compile(
                    source, target, len(unit.symbols), unit.by_hand
                )
        except BaseException:
            _end(started)
            raise
        return started

    def _finish(self, started: Sequence[Run]) -> dict[str, Function]:
        made: dict[str, Function] = {}
        try:
            for run in started:
                process = run.process
                assert process is not None, "it was started"
                errors = process.communicate()[1].decode(errors="replace")
                toolchain.require_running(process)
                if process.returncode != 0:
                    why = f"failed ({process.returncode})"
                    raise self._failure(run.unit.text, why, errors, is_of_source(errors))
                made.update(self._keep(run.unit, run.target))
            return made
        finally:  # also of an interrupt, which the compilers do not see
            _end(started)

    def _keep(self, unit: Unit, target: Path) -> dict[str, Function]:
        self.compiled += len(unit.symbols)
        data = target.read_bytes()
        check = digest(data)
        file = f"{check}.so"
        try:
            kept = self.cache.write(file, data) is not None
            if not kept or file in self._libraries:
                # From a path of its own: what is loaded already by this name lacked the function.
                library = _C.SharedObject(str(target), _C.checksum(data), private=True)
                made = self._enter(
                    {name: Function.of(library, s, None) for name, s in unit.symbols.items()}
                )
            else:
                made = self._load(file, check, unit.symbols)
        except AttributeError:
            names = ", ".join(unit.symbols.values())
            why = f"has made no function {names}: define `void NAME(...)` without `static`"
            raise self._failure(unit.text, why, "", of_source=True) from None
        except OSError as error:
            why = "has made what does not load"
            raise self._failure(unit.text, why, str(error), of_source=False) from None
        for name in unit.symbols if kept else ():
            self.cache.write_json(f"{name}.json", {"object": file, "digest": check})
        for name, source in unit.sources.items() if kept else ():
            self.cache.write(f"{name}.c", source.encode())  # for people, and for profiles
        return made

    def _failure(self, text: str, why: str, errors: str, of_source: bool) -> CompileError:
        handle, kept = tempfile.mkstemp(prefix="tenon-failed-", suffix=".c")
        with os.fdopen(handle, "w") as f:
            f.write(text)
        first = "\n".join(errors.splitlines()[:20])
        said = f"{self._name()} {why}; the source is in {kept}\n{first}".rstrip()
        return CompileError(said, of_source)

    def _name(self) -> str:
        return self.toolchain.command


def set_up(sources: Sequence[str], toolchain: Toolchain) -> Path:
    """Compiles functions for everybody on this machine; gives the folder.

    Raises CompileError, and OSError for a folder that cannot be written.
    """
    SET_UP.mkdir(mode=0o755, exist_ok=True)
    compiler = CpuCompiler(Cache(SET_UP), toolchain.command)
    compiler.functions(sources)
    if compiler.cache.has_failed:
        raise PermissionError(f"{SET_UP} cannot be written")
    for path in SET_UP.iterdir():
        path.chmod(0o644)
    return SET_UP


def _end(started: Sequence[Run]) -> None:
    for run in started:
        if run.process is not None:
            toolchain.end(run.process)
            run.process.wait()
        run.folder.cleanup()


@functools.cache
def default_compiler() -> CpuCompiler:
    """The C compiler of the settings, over the user's cache directory."""
    folder = Path(config.cache_directory()) / "kernels"
    return CpuCompiler(Cache(folder), config.CC.read() or "gcc")
