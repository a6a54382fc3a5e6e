"""The pages of the reference, made from docstrings, comments and declarations.

`python docs/site/api_reference.py FOLDER` writes them; `make docs` does so with the environment
that the device is built in. What a page says stands beside the code that it is of, and only there.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Section:
    """Names of one module, under a heading."""

    title: str
    module: str
    names: tuple[str, ...]
    #: How a program writes the module, where that is not by its name.
    written: str = ""

    def items(self) -> Iterator[tuple[str, Any]]:
        """Each name as a program writes it, and what it is."""
        module = importlib.import_module(self.module)
        for name in self.names:
            yield f"{self.written or self.module}.{name}", getattr(module, name)


@dataclass(frozen=True)
class Page:
    name: str
    title: str
    introduction: str
    sections: list[Section] = field(default_factory=list)


def python_pages() -> list[Page]:
    """The pages of Python names. Importing this file loads no PyTorch; this does."""
    import torch  # noqa: F401 - it loads the device before its parts are asked for

    import torch_tenon

    api = "torch_tenon.api"
    return [
        Page(
            "torch_tenon",
            "`torch_tenon`",
            "What the package itself has, and what its functions return and raise.",
            [
                Section("Functions and classes", "torch_tenon", tuple(torch_tenon.__all__)),
                _section("Exported models", "torch_tenon.exporting.export", "Exported"),
                _section(
                    "Loaded programs",
                    "torch_tenon.runtime.program",
                    "Program",
                    "Method",
                    "TensorType",
                ),
                _section("Reports", "torch_tenon.reports.counting", "Report", "OpCount"),
                _section("Explanations", "torch_tenon.reports.explaining", "Explanation"),
                _section(
                    "Errors of kernel files", "torch_tenon.ops.kernel_file", "KernelFileError"
                ),
                _section("Errors of programs", "torch_tenon.runtime.library", "ProgramError"),
                _section("Errors of settings", "torch_tenon.config", "ConfigError"),
            ],
        ),
        Page(
            "torch.tenon",
            "`torch.tenon`",
            "The names are those of `torch.cuda` and `torch.mps`: [which are not here, and why]"
            '(../surface.md). `device` is an index, `"tenon:1"`, a `torch.device`, or None for the '
            "current one. A device that does not exist raises RuntimeError.",
            [
                Section(
                    "Devices", f"{api}.accelerator", own_names(f"{api}.accelerator"), "torch.tenon"
                ),
                Section(
                    "Streams and events",
                    f"{api}.streams",
                    exported(f"{api}.streams"),
                    "torch.tenon",
                ),
                Section("Memory", f"{api}.memory", exported(f"{api}.memory"), "torch.tenon"),
                Section(
                    "Random numbers", f"{api}.random", exported(f"{api}.random"), "torch.tenon"
                ),
                Section(
                    "Profiler",
                    "torch_tenon.reports.profiler",
                    exported("torch_tenon.reports.profiler"),
                    "torch.tenon.profiler",
                ),
            ],
        ),
        Page(
            "target",
            "What a target implements",
            "[A target of your own](../target.md) builds one step by step. All its parts:",
            [
                _section(
                    "The target",
                    "torch_tenon.targets.target",
                    *("Target", "Queue", "OrderedQueue", "PeerQueue", "Launch"),
                    *("Event", "TimedEvent", "Passed"),
                ),
                _section(
                    "Errors",
                    "torch_tenon.targets.target",
                    *("TargetError", "CompilerMissing", "CompileError"),
                ),
                _section("A queue with a thread", "torch_tenon.targets.thread", "QueueThread"),
                _section("Kernels over tensors", "torch_tenon.targets.launch", "launch"),
                _section("Targets in a library", "torch_tenon.targets.library", "LibraryTarget"),
                _section(
                    "The compiler's part",
                    "torch_tenon.compiler.backend",
                    *("Backend", "KernelFile", "PackedCode", "PackedKernel"),
                ),
                _section(
                    "What the hardware can",
                    "torch_tenon.compiler.capabilities",
                    *("Capabilities", "Tiles"),
                ),
                _section("Kernels", "torch_tenon.compiler.kernel", "Kernel"),
                _section(
                    "Kernels by hand",
                    "torch_tenon.compiler.handwritten",
                    *("Code", "Parameter", "Launch", "Next"),
                ),
            ],
        ),
        Page(
            "loops",
            "The loop tree",
            "[Writing a generator](../generator.md) spells one in a language. "
            "[Scalar ops](scalar-ops.md) has what a `Let` computes.",
            [
                _section("From a group to a tree", "torch_tenon.compiler.loops.lower", "lower"),
                _section(
                    "... of a product", "torch_tenon.compiler.loops.tile_product", "tile_product"
                ),
                _section("Rewrites", "torch_tenon.compiler.loops.place", "place_values"),
                _section("Copies of what is read", "torch_tenon.compiler.loops.stage", "stage"),
                _section(
                    "Copies ahead", "torch_tenon.compiler.loops.double_buffer", "double_buffer"
                ),
                _section(
                    "Statements",
                    "torch_tenon.compiler.loops.tree",
                    *("Tree", "For", "If", "Let", "Load", "Store", "Declare", "Accumulate"),
                    *("Check", "Barrier", "CopyBlock", "Wait", "TileProduct", "Draw"),
                ),
                _section(
                    "Operands and memory",
                    "torch_tenon.compiler.loops.tree",
                    *("Constant", "Read", "Array", "Accumulator", "Failure", "space_of", "walk"),
                ),
                _section(
                    "What a kernel is called with",
                    "torch_tenon.compiler.loops.parameters",
                    *("parameters", "Parameters"),
                ),
                _section("Text of a tree", "torch_tenon.compiler.loops.show", "show"),
                _section("Where combining begins", "torch_tenon.ir.values", "neutral"),
            ],
        ),
    ]


def _section(title: str, module: str, *names: str) -> Section:
    return Section(title, module, names)


def exported(module: str) -> tuple[str, ...]:
    """What a module says that it has, in the order of its text."""
    found = importlib.import_module(module)
    return tuple(sorted(found.__all__, key=lambda name: _line(getattr(found, name))))


def own_names(module: str) -> tuple[str, ...]:
    """The public functions and classes that a module defines, in the order of its text."""
    found = importlib.import_module(module)
    names = [
        name
        for name, value in vars(found).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module
        and name not in ("apply_settings", "load_later")  # for register.py
    ]
    return tuple(sorted(names, key=lambda name: _line(getattr(found, name))))


def _line(value: Any) -> int:
    return inspect.getsourcelines(inspect.unwrap(value))[1]


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class defines itself, in the order of its text."""
    for name, value in vars(cls).items():
        function = getattr(value, "__func__", value)
        if not name.startswith("_") and (
            inspect.isfunction(function) or isinstance(value, property) or inspect.isclass(value)
        ):
            yield name, function


def attributes(cls: type) -> dict[str, tuple[str, str]]:
    """The attributes that a class declares: what is written of each, and the comments `#:` above
    it, or the comment beside it."""
    found: dict[str, tuple[str, str]] = {}
    comments: list[str] = []
    indent = None
    for line in inspect.getsource(cls).splitlines():
        if indent is None:
            match = re.match(r"( *)(?:@|class )", line)
            indent = len(match[1]) + 4 if match else None
            continue
        text = line[indent:]
        if text.startswith("#:"):
            comments.append(text[2:].strip())
            continue
        match = re.match(r"([a-z]\w*): (.*?)(?:  # (.*))?$", text)
        if match and not line[:indent].strip():
            found[match[1]] = (
                f"{match[1]}: {match[2]}",
                " ".join([*comments, match[3] or ""]).strip(),
            )
        comments = []
    return found


def docstring(value: Any) -> str:
    """What is written of a name itself, not of what it inherits from; empty where nothing is."""
    if isinstance(value, property):
        value = value.fget
    text = getattr(inspect.unwrap(value), "__doc__", None) or ""
    # `dataclass` and `NamedTuple` write a signature where nobody has written a text.
    is_signature = text.startswith(f"{getattr(value, '__name__', '')}(")
    return "" if is_signature else inspect.cleandoc(text)


def signature(name: str, value: Any) -> str:
    """A call as it is declared, in lines of at most 100 characters."""
    if isinstance(value, property):
        return name
    value = inspect.unwrap(value)
    if inspect.isclass(value):
        has_own = any(key in vars(value) for key in ("__init__", "__new__", "__match_args__"))
        if not has_own or issubclass(value, Exception) or getattr(value, "_is_protocol", False):
            return f"class {name}"
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    parameters = [p for p in found.parameters.values() if p.name not in ("self", "cls")]
    if inspect.isclass(value):
        found = found.replace(return_annotation=inspect.Signature.empty)
        name = f"class {name}"
    text = str(found.replace(parameters=parameters))
    text = re.sub(r"(?<=[:\[,|>] )'([^']*)'|^'([^']*)'$", r"\1\2", text)
    if len(name) + len(text) > 100:
        inner = ",\n".join(f"    {_parameter(p)}" for p in _with_marks(parameters))
        tail = (
            "" if found.return_annotation is inspect.Signature.empty else text.rpartition(" -> ")[2]
        )
        text = f"(\n{inner},\n)" + (f" -> {tail}" if tail else "")
    return f"{name}{text}"


def _with_marks(parameters: Sequence[inspect.Parameter]) -> Iterator[inspect.Parameter | str]:
    starred = False
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        yield parameter


def _parameter(parameter: inspect.Parameter | str) -> str:
    return re.sub(r"(?<=: )'([^']*)'", r"\1", str(parameter))


def prose(text: str) -> str:
    """A docstring as Markdown: lines that are set in by four are code already."""
    # A text that begins a line with a bracket or a number is no list, link or HTML.
    return re.sub(r"(?<!`)<(?=\w)", "&lt;", text)


def python_page(page: Page) -> str:
    lines = [f"# {page.title}", "", page.introduction, ""]
    for section in page.sections:
        lines += [f"## {section.title}", ""]
        if not section.module.startswith("torch_tenon.api") and section.module != "torch_tenon":
            lines += [f"In `{section.written or section.module}`.", ""]
        for name, value in section.items():
            short = name.rpartition(".")[2]
            lines += [f"### `{short}` {{ #{name} }}", ""]
            lines += ["```python", signature(name, value), "```", "", prose(docstring(value)), ""]
            if not inspect.isclass(value) or issubclass(value, dict):
                continue
            declared = attributes(value)
            if any(why for _, why in declared.values()):
                lines += ["| attribute | |", "|---|---|"]
                lines += [f"| `{cell(text)}` | {cell(why)} |" for text, why in declared.values()]
                lines += [""]
            for member, function in members(value):
                if member in declared:
                    continue
                lines += [f"#### `{short}.{member}` {{ #{name}.{member} }}", ""]
                lines += ["```python", signature(member, function), "```", ""]
                lines += [prose(docstring(function)), ""]
    return "\n".join(lines)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# include/tenon.h


@dataclass
class Declaration:
    """One declaration of a header, with the comment above it."""

    name: str
    comment: str
    code: str


def header_parts(text: str) -> tuple[str, list[tuple[str, list[Declaration]]]]:
    """The header's own comment, and its declarations by the titles of its rulers."""
    introduction = _comment_text(re.match(r"/\*.*?\*/", text, re.DOTALL)[0])  # type: ignore[index]
    body = text[text.index('extern "C" {') :].partition("#endif\n")[2]
    body = body[: body.rindex("#ifdef __cplusplus")]
    parts: list[tuple[str, list[Declaration]]] = [("general", [])]
    comment, code, depth = "", [], 0
    for piece in re.findall(r"/\*.*?\*/|[^\n]*\n|\n", body, re.DOTALL):
        ruler = re.match(r"/\* -{3,} (.*?) -{3,} \*/", piece)
        if ruler:
            parts.append((ruler[1], []))
        elif piece.startswith("/*") and not code:
            comment = _comment_text(piece)
        elif piece.strip() or code:
            code.append(piece)
            depth += piece.count("{") - piece.count("}") if not piece.startswith("/*") else 0
            whole = "".join(code)
            if depth == 0 and (whole.rstrip().endswith(";") or whole.startswith("#define")):
                parts[-1][1].append(Declaration(declared_name(whole), comment, whole.strip()))
                comment, code = "", []
        elif comment and piece.count("\n") and not piece.strip():
            continue
    return introduction, [part for part in parts if part[1]]


def declared_name(code: str) -> str:
    for pattern in (
        r"#define (\w+)",
        r"typedef [^{;]*\(\*(\w+)\)",
        r"\} (\w+);\s*$",
        r"typedef struct \w+ (\w+);",
        r"(\w+)\(",
        r"enum \{\s*(\w+)",
    ):
        found = re.search(pattern, code)
        if found:
            return found[1]
    raise ValueError(f"a declaration without a name: {code}")


def _comment_text(comment: str) -> str:
    lines = [re.sub(r"^ ?\*? ?", "", x) for x in comment.strip()[2:-2].strip().splitlines()]
    return "\n".join(line.rstrip() for line in lines).strip()


def header_page() -> str:
    text = (ROOT / "include" / "tenon.h").read_text()
    introduction, parts = header_parts(text)
    lines = ["# `include/tenon.h`", "", introduction, ""]
    for title, declarations in parts:
        lines += [f"## {title[0].upper()}{title[1:]}", ""]
        for declaration in declarations:
            name = declaration.name
            lines += [f"### `{name}` {{ #{name} }}", "", declaration.comment, ""]
            lines += ["```c", declaration.code, "```", ""]
    return "\n".join(lines)


# The commands


def commands_page() -> str:
    import typer

    from torch_tenon.cli import app

    lines = [
        "# Commands",
        "",
        "`tenon --help` lists them, and `tenon COMMAND --help` says this.",
        "",
    ]
    for name, command in commands(typer.main.get_command(app)):
        usage = " ".join([f"tenon {name}", *(_metavar(p) for p in _arguments(command))])
        lines += [f"## `tenon {name}` {{ #{name.replace(' ', '-')} }}", ""]
        lines += ["```text", f"{usage} [OPTIONS]" if _options(command) else usage, "```", ""]
        lines += [prose(inspect.cleandoc(command.help or "")), ""]
        rows = [(f"`{_metavar(a)}`", a.help or "") for a in _arguments(command)]
        rows += [
            (", ".join(f"`{o}`" for o in (*p.opts, *p.secondary_opts)), p.help or "")
            for p in _options(command)
        ]
        if rows:
            lines += ["| argument or option | |", "|---|---|"]
            lines += [f"| {what} | {cell(prose(why))} |" for what, why in rows] + [""]
    return "\n".join(lines)


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Each command with its name behind `tenon`, those that parse their own options too."""
    import typer

    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
            continue
        apart = parses_apart(command)
        if apart is not None:
            alone = typer.Typer(add_completion=False)
            alone.command()(apart)
            command = typer.main.get_command(alone)
        yield before + name, command


def parses_apart(command: Any) -> Any:
    """The function that a command of `run_apart` (cli/application.py) hands its arguments to."""
    if command.add_help_option:
        return None
    function = inspect.unwrap(command.callback)
    found: list[Any] = []
    with mock.patch.object(
        sys.modules[function.__module__], "run_apart", lambda apart, *_: found.append(apart)
    ):
        function(None)
    (apart,) = found
    return apart


def _metavar(argument: Any) -> str:
    """An argument as a line of usage has it."""
    text = argument.metavar or argument.name.upper()
    text += "..." if argument.nargs != 1 else ""
    return text if argument.required else f"[{text}]"


def _arguments(command: Any) -> list[Any]:
    return [p for p in command.params if p.param_type_name == "argument"]


def _options(command: Any) -> list[Any]:
    return [p for p in command.params if p.param_type_name == "option" and not p.hidden]


# The settings


def settings_page() -> str:
    from torch_tenon import config

    lines = [
        "# Settings in short",
        "",
        "As `torch_tenon/config.py` declares them. [Settings](../settings.md) says more of each.",
        "",
    ]
    for setting in config.SETTINGS:
        lines += [f"## `{setting.variable}` {{ #{setting.variable} }}", "", prose(setting.doc), ""]
        lines += [f"- Type: {setting.type}", f"- Accepts: {setting.allowed}"]
        if setting not in (config.CACHE_DIR, config.CC):  # these depend on the machine
            lines += [f"- Default: `{config.as_text(setting.default())}`"]
        lines += [""]
    return "\n".join(lines)


# The scalar ops


def scalar_ops_page() -> str:
    from torch_tenon.ir.scalar_ops import OPS, RANDOM_NUMBERS, REDUCTIONS

    starts = {
        "zero": "0",
        "one": "1",
        "ones": "all bits",
        "least": "the least number",
        "greatest": "the greatest number",
    }
    lines = ["# Scalar ops", "", "What [loop trees](loops.md) compute with, as"]
    lines += ["`torch_tenon/ir/scalar_ops.py` has it.", "", "## Ops", ""]
    lines += ["The sign is that of languages that have one; for bool it may be another.", ""]
    lines += ["| op | operands | result | sign | for bool | value |", "|---|---|---|---|---|---|"]
    results = {"s": "of their dtype", "f": "floating point", "b": "bool"}
    for name, op in OPS.items():
        signs = (f"`{cell(sign)}`" if sign else "" for sign in (op.sign, op.bool_sign))
        lines += [
            f"| `{name}` | {op.arity} | {results[op.rule]} | {' | '.join(signs)} "
            f"| {cell(prose(op.text))} |"
        ]
    lines += ["", "## Ways to combine", ""]
    lines += ["Of an accumulator, and of a store that keeps what was there.", ""]
    lines += ["| combine | of no numbers | sign | for bool | op |", "|---|---|---|---|---|"]
    for name, way in REDUCTIONS.items():
        words = (f"`{cell(x)}`" if x else "" for x in (way.sign, way.bool_sign, way.op))
        lines += [f"| `{name}` | {starts[way.start]} | {' | '.join(words)} |"]
    lines += ["", "## Random numbers", ""]
    lines += ["Of a seed, an offset and an element.", ""]
    lines += ["| op | dtypes | value |", "|---|---|---|"]
    for name, (dtypes, text) in RANDOM_NUMBERS.items():
        words = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        lines += [f"| `{name}` | {words} | {cell(prose(text))} |"]
    return "\n".join([*lines, ""])


def pages() -> dict[str, str]:
    """All pages of the reference, by the names of their files."""
    found = {f"{page.name}.md": python_page(page) for page in python_pages()}
    found["scalar-ops.md"] = scalar_ops_page()
    found["tenon-h.md"] = header_page()
    found["commands.md"] = commands_page()
    found["settings-in-short.md"] = settings_page()
    return found


def main(arguments: Iterable[str]) -> None:
    (folder,) = map(Path, arguments)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(re.sub(r"\n{3,}", "\n\n", text))


if __name__ == "__main__":
    main(sys.argv[1:])
