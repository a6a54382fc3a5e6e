"""`tenon export`, `tenon info` and `tenon run`: programs as files."""

from __future__ import annotations

import itertools
import json as json_module
import statistics
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torch_tenon.cli.application import app, fail, load_device

if TYPE_CHECKING:
    from torch_tenon.runtime.head import MethodFacts, TensorFacts

PROGRAM = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A .tenon file.")]


@app.command()
def export(
    function: Annotated[
        str,
        typer.Argument(
            help="FILE.py:NAME, a function that gives what to export: a module and its example "
            "arguments as a tuple, an ExportedProgram, or a dict of these by method."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the program goes.")] = Path(
        "model.tenon"
    ),
    cpu: Annotated[
        str | None, typer.Option(help="Processors, comma-separated: x86-64-v3, native, ...")
    ] = None,
    machine: Annotated[
        str | None, typer.Option(help="Another machine: aarch64-linux-gnu, ...")
    ] = None,
    weights: Annotated[str, typer.Option(help="inside, apart, or a .safetensors file.")] = "inside",
    target: Annotated[str | None, typer.Option(help="cpu, or the target of TENON_TARGET.")] = None,
    host: Annotated[
        str, typer.Option(help="runtime, or torch: the program may call PyTorch's ops.")
    ] = "runtime",
) -> None:
    """Write a model to one file that runs without Python and PyTorch."""
    file, _, name = function.rpartition(":")
    if not file or not Path(file).is_file():
        raise fail(f"{function!r} is no FILE.py:NAME")
    load_device()
    import runpy
    import sys

    from torch import nn

    from torch_tenon.exporting.errors import ExportError
    from torch_tenon.exporting.export import export as write
    from torch_tenon.targets.target import TargetError

    sys.path.insert(0, str(Path(file).resolve().parent))  # as Python has it for a script
    scope = runpy.run_path(file)
    if name not in scope:
        raise fail(f"{file} has no {name}")
    if isinstance(scope[name], nn.Module) or not callable(scope[name]):
        kind = type(scope[name]).__name__
        raise fail(f"{name} of {file} is {kind}: a function that gives what to export is expected")
    found = scope[name]()
    if isinstance(found, tuple) and len(found) != 2:
        raise fail(f"{name} gives {len(found)} things: a module and its arguments are expected")
    model, args = found if isinstance(found, tuple) else (found, None)
    try:
        made = write(
            model,
            args,
            output,
            cpu=cpu,
            machine=machine,
            weights=weights,
            target=target,
            host=host,
        )
    except (ExportError, TargetError, NotImplementedError, OSError, TypeError, ValueError) as error:
        raise fail(str(error)) from None
    typer.echo(
        f"{made.path}: {', '.join(made.methods)}; {made.kernels} kernels for "
        f"{', '.join(made.processors)} ({_bytes(made.code_bytes)}), "
        f"weights of {_bytes(made.weight_bytes)}"
        + (f"; calls {', '.join(made.calls)} of PyTorch's" if made.calls else "")
    )


@app.command()
def info(
    path: PROGRAM, json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """What is in a program's file: methods, sizes, weights, and for which processors its code is.

    Nothing of the file is run.
    """
    import dataclasses

    from torch_tenon.runtime.dtypes import dtype_name
    from torch_tenon.runtime.head import read_head
    from torch_tenon.runtime.interface import NO_BOUND
    from torch_tenon.runtime.library import ProgramError
    from torch_tenon.runtime.program import digest_of

    try:
        head = read_head(path)
    except (ProgramError, OSError) as error:
        raise fail(str(error)) from None
    if json:
        typer.echo(json_module.dumps(dataclasses.asdict(head) | {"digest": digest_of(path)}))
        return
    typer.echo(f"{path}: by {head.producer}, for the target {head.target}")
    typer.echo(f"  digest {digest_of(path)}")
    if head.codes and head.target == "cpu":
        typer.echo("  It has machine code: load it only from whom you trust, or by its digest.")
    if head.calls:
        typer.echo(f"  It needs PyTorch, and calls {', '.join(head.calls)}.")
    for processor, nbytes in head.codes:
        typer.echo(f"  code for {processor}: {_bytes(nbytes)}")
    where = f" in {head.weight_file}" if head.weight_file else ""
    typer.echo(f"  {len(head.weights)} weights, {_bytes(head.weight_bytes)}{where}")
    for name, dtype, sizes in head.states:
        typer.echo(f"  state {name}: {dtype_name(dtype)}{sizes}")
    for method in head.methods:
        given, made = (", ".join(map(_shown, x)) for x in (method.inputs, method.outputs))
        typer.echo(f"{method.name}({given}) -> {made}")
        for name, least, greatest in method.symbols:
            typer.echo(f"  {least} <= {name}" + (f" <= {greatest}" if greatest < NO_BOUND else ""))
        steps = method.facts.get("steps", [])
        typer.echo(f"  {len(steps)} kernels")
        for step in steps:
            typer.echo(f"    {step}")


@app.command()
def run(
    path: PROGRAM,
    method: Annotated[str | None, typer.Option(help="Which, if there are several.")] = None,
    input: Annotated[
        list[Path] | None,
        typer.Option("--input", "-i", help="A .npy file for each input, in order."),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(help="NAME=NUMBER: a size of inputs that are made up, as `info` names it."),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="How often.")] = 1,
    threads: Annotated[int, typer.Option(min=0, help="0: as many as processors.")] = 0,
    target: Annotated[str | None, typer.Option(help="The library of a target, or opencl.")] = None,
    commit: Annotated[
        str, typer.Option(help="adaptive, or each: wait after each step, and replay nothing.")
    ] = "adaptive",
    products: Annotated[
        str | None, typer.Option(help="What multiplies: own, onednn, or the path of a library.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A folder for the results, as .npy.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a program: how long it takes, its memory, and what it gives. PyTorch is not needed, but
    for a program that calls its ops.

    Inputs that are not given are ones.
    """
    import resource

    import numpy as np

    from torch_tenon.runtime.library import ProgramError
    from torch_tenon.runtime.program import load

    start = time.perf_counter()
    try:
        program = load(path, threads=threads, target=target, commit=commit, products=products)
        name = method or next(iter(program.methods))
        called = program.methods.get(name)
        if called is None:
            raise fail(f"{path} has no method {name!r}: {', '.join(program.methods)}")
        given = [_array(p) for p in input or []]
        facts = next(m for m in program.head.methods if m.name == name)
        given += _ones(facts, [x.shape for x in given], size or [])
        loaded = time.perf_counter()
        results: Any = called(*given)
        times = [time.perf_counter() - loaded]
        for _ in range(repeat - 1):
            begin = time.perf_counter()
            called(*given)
            times.append(time.perf_counter() - begin)
    except (ProgramError, OSError, TypeError, ValueError, MemoryError) as error:
        raise fail(str(error)) from None
    found = {
        "load_seconds": loaded - start,
        "first_seconds": times[0],
        "median_seconds": statistics.median(times),
        "runs": repeat,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **program.report(),
    }
    every = results if isinstance(results, tuple) else (results,)
    arrays = [x for x in every if isinstance(x, np.ndarray)]
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        names = _file_names([spec.name for spec in called.outputs])
        for file, array in zip(names, arrays, strict=True):
            np.save(output / file, array)
    if json:
        typer.echo(json_module.dumps(found))
        return
    for spec, array in zip(called.outputs, arrays, strict=True):
        first = ", ".join(f"{x:.6g}" for x in array.reshape(-1)[:4].tolist())
        typer.echo(f"{spec.name}: {array.dtype}{list(array.shape)}  {first}, ...")
    multiplied = found.pop("products")
    for key, value in found.items():
        typer.echo(f"  {key}: {value:.6g}" if isinstance(value, float) else f"  {key}: {value}")
    for line in _products(multiplied):
        typer.echo(f"  {line}")


def _products(said: Any) -> list[str]:
    """What multiplied, as `Program.report` says it."""
    if not isinstance(said, dict):
        return ["products: own code" if said is None else f"products: own code ({said})"]
    if "library" not in said:
        return [f"products: {said}"]
    lines = [f"products: {said['library']}, which laid out {_bytes(said['laid_out'])} of weights"]
    for p in said["products"]:
        why = f" ({p['why']})" if p["why"] else ""
        lines.append(f"  {p['what']}: {p['by']}{why}")
    return lines


def _shown(tensor: TensorFacts) -> str:
    from torch_tenon.runtime.dtypes import dtype_name

    return f"{tensor.name}: {dtype_name(tensor.dtype)}[{', '.join(tensor.shape)}]"


def _array(path: Path) -> Any:
    import numpy as np

    try:
        found = np.load(path)
    except (EOFError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(found, np.ndarray):
        raise ValueError(f"{path}: it has several arrays, and an input is one: give a .npy file")
    return found


def _file_names(names: Sequence[str]) -> list[str]:
    """A file for each result, by its name; of several that would have one file, the later ones are
    numbered."""
    found: list[str] = []
    for name in names:
        plain = name.replace("/", "_")
        numbered = (f"{plain}{k or ''}.npy" for k in itertools.count())
        found.append(next(file for file in numbered if file not in found))
    return found


def _sizes(facts: MethodFacts, shapes: Sequence[Sequence[int]], chosen: list[str]) -> list[int]:
    """What each symbol is: as in the inputs that are given, as chosen, or else its least."""
    names = [name for name, _, _ in facts.symbols]
    found = [max(least, 1) for _, least, _ in facts.symbols]
    for text in chosen:
        name, _, number = text.partition("=")
        if not number.isdigit():
            raise ValueError(f"--size {text}: NAME=NUMBER is expected")
        if name not in names:
            has = f"the sizes {', '.join(names)}" if names else "no size to choose"
            raise ValueError(f"--size {text}: {facts.name} has {has}")
        found[names.index(name)] = int(number)
    for tensor, shape in zip(facts.inputs, shapes, strict=False):
        for text, size in zip(tensor.shape, shape, strict=False):
            if text in names:
                found[names.index(text)] = size
    return found


def _ones(facts: MethodFacts, shapes: Sequence[Sequence[int]], chosen: list[str]) -> list[Any]:
    """Arrays of ones for the inputs behind those that are given, whose shapes these are."""
    import numpy as np

    from torch_tenon.runtime.arrays import numpy_dtype
    from torch_tenon.runtime.dtypes import dtype_name
    from torch_tenon.runtime.size_words import size_value

    values = _sizes(facts, shapes, chosen)
    return [
        np.ones([size_value(e, values) for e in x.sizes], numpy_dtype(dtype_name(x.dtype)))
        for x in facts.inputs[len(shapes) :]
    ]


def _bytes(n: int) -> str:
    return f"{n / 2**20:.1f} MiB" if n >= 1 << 20 else f"{n / 1024:.1f} KiB"
