"""`torch_tenon.load`: a program from a file, as functions of arrays or tensors."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import weakref
from collections.abc import Mapping
from ctypes import byref, c_void_p, sizeof
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_tenon.runtime.arrays import kind_of
from torch_tenon.runtime.dtypes import dtype_name
from torch_tenon.runtime.head import Head, MethodFacts, read_head_of
from torch_tenon.runtime.interface import NO_BOUND
from torch_tenon.runtime.library import (
    Library,
    Options,
    ProgramError,
    Tensor,
    TensorInfo,
    library,
    library_with_pytorch,
)
from torch_tenon.runtime.products import OWN, Products


@dataclass(frozen=True)
class TensorType:
    """An input or output: its dtype by PyTorch's name, and for each dimension its size, or the
    least and the greatest that it may have (None: no bound)."""

    name: str
    dtype: str
    sizes: tuple[int | tuple[int, int | None], ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(_size, self.sizes))}]"


def _size(size: int | tuple[int, int | None]) -> str:
    if isinstance(size, int):
        return str(size)
    least, greatest = size
    return f"{least}..{'' if greatest is None else greatest}"


class Method:
    """One function of a program. It takes tensors of PyTorch, arrays of NumPy or what gives DLPack,
    on the host, in the order of `inputs` or by their names, and gives what the model gave, tensors
    where it was given one and else arrays; of a structure the leaves, as a tuple.

    Raises ProgramError, also for sizes and dtypes that the program was not exported for, and where
    it is closed; ValueError for values that the model refuses, such as an index out of range;
    TypeError for what is no dense array.
    """

    def __init__(self, program: Program, number: int, facts: MethodFacts) -> None:
        self._program, self._number = program, number
        self.name, self.facts = facts.name, facts.facts
        lib = program._library
        handle = program._handle
        self.inputs = tuple(
            _type(lib.tenon_describe_input, handle, number, k)
            for k in range(lib.tenon_program_inputs(handle, number))
        )
        self.outputs = tuple(
            _type(lib.tenon_describe_output, handle, number, k)
            for k in range(lib.tenon_program_outputs(handle, number))
        )
        self._given = Tensor * max(len(self.inputs), 1)
        self._made = Tensor * max(len(self.outputs), 1)

    def __call__(self, *args: Any, **named: Any) -> Any:
        handle = self._program._opened()
        inputs = self._in_order(args, named)
        kind = kind_of(inputs)
        given, kept = self._given(), []
        for k, (at, x) in enumerate(zip(given, inputs, strict=False)):
            try:
                dense, at.dtype, sizes, at.data, at.nbytes = kind.taken(x)
            except (TypeError, RuntimeError, BufferError, ValueError) as error:
                raise TypeError(f"{self.name}: input {self.inputs[k].name!r}: {error}") from error
            at.size = sizeof(Tensor)
            at.rank = len(sizes)
            at.sizes[: len(sizes)] = list(sizes)
            kept.append(dense)
        made = self._made()
        for at in made:
            at.size = sizeof(Tensor)
        lib = self._program._library
        counts = (given, len(inputs), made, len(self.outputs))
        lib.tenon_output_sizes(handle, self._number, *counts)
        outputs = []
        for at, _ in zip(made, self.outputs, strict=False):
            output, at.data, at.nbytes = kind.made(at.dtype, at.sizes[: at.rank])
            outputs.append(output)
        lib.tenon_run(handle, self._number, *counts)
        results = [outputs[r["output"]] if "output" in r else r["value"] for r in self._results()]
        return results[0] if self.facts.get("is_single") else tuple(results)

    def _results(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.facts["results"]
        return found

    def _in_order(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
        names = [x.name for x in self.inputs]
        if len(args) > len(names):
            raise TypeError(f"{self} takes {len(names)} inputs, not {len(args)}")
        found = dict(zip(names, args, strict=False))
        for name, x in named.items():
            if name not in names or name in found:
                why = "is given twice" if name in found else "is none of its inputs"
                raise TypeError(f"{self}: {name!r} {why}")
            found[name] = x
        missing = [name for name in names if name not in found]
        if missing:
            raise TypeError(f"{self} lacks {', '.join(missing)}")
        return [found[name] for name in names]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.inputs))})"

    def __repr__(self) -> str:
        return f"<method {self} -> {', '.join(map(str, self.outputs))}>"


def _type(describe: Any, handle: Any, method: int, k: int) -> TensorType:
    info = TensorInfo(size=sizeof(TensorInfo))
    describe(handle, method, k, byref(info))
    sizes = []
    for d in range(info.rank):
        least, greatest = info.least[d], info.greatest[d]
        bound = None if greatest >= NO_BOUND else greatest
        sizes.append(least if least == greatest else (least, bound))
    return TensorType(info.name.decode(), dtype_name(info.dtype), tuple(sizes))


class Program:
    """A loaded program. Calling it calls its only method, or `forward`; others are attributes
    (`program.decode(x)`). Several threads may call it; with state, one call runs at a time."""

    def __init__(
        self, library: Library, handle: c_void_p, head: Head, path: str, products: Products
    ) -> None:
        self._library, self._handle, self._path, self.head = library, handle, path, head
        self._products = products
        self._close = weakref.finalize(self, _close, library, handle, products)
        self._close.atexit = False  # threads may still run it
        self.methods: dict[str, Method] = {}
        for k, m in enumerate(head.methods):
            if m.name not in self.methods:  # what has the same name are other forms of it
                self.methods[m.name] = Method(self, k, m)

    def __call__(self, *args: Any, **named: Any) -> Any:
        name = next(iter(self.methods)) if len(self.methods) == 1 else "forward"
        if name not in self.methods:
            raise TypeError(f"{self._path} has the methods {', '.join(self.methods)}: call one")
        return self.methods[name](*args, **named)

    def __getattr__(self, name: str) -> Method:
        methods = self.__dict__.get("methods", {})
        if name in methods:
            found: Method = methods[name]
            return found
        raise AttributeError(f"{self._path} has no method {name!r}: {', '.join(methods)}")

    def reset(self) -> None:
        """Gives the state the contents that it had in the file. After a call that failed while it
        ran, methods that use the state raise ProgramError until then."""
        self._library.tenon_reset(self._opened())

    def report(self) -> dict[str, Any]:
        """What runs it: the code that was taken, threads, bytes of memory, what multiplies."""
        found: dict[str, Any] = json.loads(self._library.tenon_program_json(self._opened()))
        return found | {"products": self._products.facts()}

    def close(self) -> None:
        """Lets go of it; nothing of it may run. Whoever calls it from then on gets ProgramError."""
        self._close()

    def _opened(self) -> c_void_p:
        if not self._close.alive:
            raise ProgramError(f"{self._path} is closed")
        return self._handle

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<program {self._path}: {', '.join(map(str, self.methods.values()))}>"


def _close(library: Library, handle: c_void_p, products: Products) -> None:
    library.tenon_close_program(handle)
    products.close()


def load(
    path: str | os.PathLike[str],
    *,
    threads: int = 0,
    target: str | None = None,
    device: int = 0,
    weights: str | os.PathLike[str] | None = None,
    digest: str | None = None,
    commit: str = "adaptive",
    check_weights: bool = True,
    products: str | None = None,
) -> Program:
    """A program that `torch_tenon.export` wrote, ready to run. It neither needs nor loads PyTorch,
    but where the program calls PyTorch's ops (`host="torch"`).

    `threads` share out the work of each run, 0: as many as there are processors. A program that is
    not of this processor needs its target's library: `target` is the path of one, or "opencl" for
    this package's own, which is also taken where nothing is said. `device` is the device's number.
    `weights` is where a program's safetensors file is, if not beside it. A file has machine code:
    with `digest`, the SHA-256 of the file in hexadecimal, another one is refused. `commit="each"`
    waits after each step, to compare. `check_weights=False` leaves out their checksums.
    `products="onednn"` has a library multiply what it is faster at, where it is installed; else the
    program's own code does, as with "own". It may be the path of another one. None: as the variable
    TENON_PRODUCTS says, or "own". `report()` says which was used.

    Raises ProgramError for a file that is damaged, or has no code for this processor; ValueError
    for another `commit`; OSError.
    """
    if commit not in ("adaptive", "each"):
        raise ValueError(f"commit={commit!r} is neither 'adaptive' nor 'each'")
    where = Path(path)
    with where.open("rb") as file:
        if digest is not None:
            has = hashlib.file_digest(file, "sha256").hexdigest()
            if has != digest.lower():
                raise ProgramError(f"{path} has the digest {has}, not {digest}")
            file.seek(0)
        head = read_head_of(file, str(path))
        if head.weight_file and weights is None:
            weights = where.parent / head.weight_file
        library_path = _target_library(target, head.target)
        options = Options(
            size=sizeof(Options),
            library=os.fsencode(library_path) if library_path is not None else None,
            device=device,
            threads=threads,
            weights=os.fsencode(weights) if weights is not None else None,
            commit_each=int(commit == "each"),
            unchecked_weights=int(not check_weights),
        )
        handle = c_void_p()
        # What was read is what is opened, whatever becomes of the path.
        name = f"/proc/self/fd/{file.fileno()}".encode()
        found = _library_for(head, str(path), library_path)
        multiplies = Products(products if library_path is None else OWN)
        options.products = multiplies.table
        try:
            found.tenon_open_program(name, byref(options), byref(handle))
        except (ProgramError, ValueError, MemoryError) as error:
            multiplies.close()
            error.args = (str(error).replace(name.decode(), str(path)),)
            raise
    return Program(found, handle, head, str(path), multiplies)


def _target_library(given: str | None, of_program: str) -> str | None:
    """The path of a target's library: what was given, or this package's own of that name."""
    name = of_program if given is None else given
    if name.isidentifier():  # no path: a file does not say what is loaded from where
        own = Path(__file__).parents[1] / "targets" / name / f"libtenon_{name}.so"
        if own.exists():
            return str(own)
    return given


def _library_for(head: Head, path: str, target: str | None) -> Library:
    """What opens a program. Raises ProgramError where it calls PyTorch's ops, and PyTorch is not
    there.

    Two copies of the runtime take turns on a device where they know of each other. A core that
    comes later finds libtenon_rt, which does not look for a core: that one, once it is there, opens
    targets.
    """
    if not head.calls and not (target is not None and "torch_tenon._C" in sys.modules):
        return library()
    try:
        return library_with_pytorch()
    except ImportError as error:
        raise ProgramError(f"{path} calls {', '.join(head.calls)} of PyTorch's: {error}") from error


def digest_of(path: str | os.PathLike[str]) -> str:
    """What `load` takes as a file's digest."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
