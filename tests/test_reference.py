"""The reference: every public name is in it, and says what it is for, takes, gives and raises."""

import ast
import inspect
import re
import textwrap
from pathlib import Path

import api_reference
import pytest
import torch

import torch_tenon

ROOT = Path(__file__).parent.parent


def entries() -> dict[str, object]:
    """Every name of the Python pages, methods too, as its heading has it."""
    found: dict[str, object] = {}
    for page in api_reference.python_pages():
        for section in page.sections:
            for name, value in section.items():
                found[name] = value
                if inspect.isclass(value):
                    declared = api_reference.attributes(value)
                    for member, function in api_reference.members(value):
                        if member not in declared:
                            found[f"{name}.{member}"] = function
    return found


ENTRIES = entries()


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return api_reference.pages()


def test_every_name_has_a_docstring() -> None:
    missing = [name for name, value in ENTRIES.items() if not api_reference.docstring(value)]
    assert missing == []


def raised(function: object) -> set[str]:
    """The exceptions that a function's own statements raise, but for those of interfaces."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))  # type: ignore[arg-type]
    except (OSError, TypeError):
        return set()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            call = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            found.add(ast.unparse(call).rpartition(".")[2])
    return found - {"AttributeError", "AssertionError"}


def test_what_a_function_raises_is_in_its_docstring() -> None:
    silent = {}
    for name, value in ENTRIES.items():
        if inspect.isfunction(value) and ".Target." not in name and ".Backend." not in name:
            absent = {e for e in raised(value) if e not in api_reference.docstring(value)}
            if absent:
                silent[name] = absent
    assert silent == {}


def test_numbers_have_units() -> None:
    """What is counted in a unit says so: a size in bytes, a time in seconds."""
    for name, value in ENTRIES.items():
        if not inspect.isfunction(value):
            continue
        parameters = inspect.signature(value).parameters
        text = api_reference.docstring(value)
        if "nbytes" in parameters:
            assert re.search(r"\bbytes\b", text), name
        if re.search(r"(^|\.)seconds$", name):
            assert re.search(r"seconds|clock", text), name
        if re.search(r"\.(max_)?memory_(allocated|reserved)$|total_memory$|mem_get_info$", name):
            assert re.search(r"\bbytes\b", text), name


def test_every_name_is_in_the_pages(pages: dict[str, str]) -> None:
    text = "\n".join(pages.values())
    for name in ENTRIES:
        assert f"{{ #{name} }}\n" in text, name


def test_the_public_names_of_the_modules_are_all_there() -> None:
    assert {f"torch_tenon.{name}" for name in torch_tenon.__all__} <= set(ENTRIES)
    public = {
        name
        for name, value in vars(torch.tenon).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__.startswith("torch_tenon.api.accelerator")
    }
    public |= {
        name for m in ("memory", "random", "streams") for name in vars(torch.tenon)[m].__all__
    }
    public -= {"apply_settings", "load_later"}
    assert public and {f"torch.tenon.{name}" for name in public} <= set(ENTRIES)


def test_each_declaration_of_the_header_is_there(pages: dict[str, str]) -> None:
    header = (ROOT / "include" / "tenon.h").read_text()
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    page = pages["tenon-h.md"]
    for name in re.findall(r"^TENON_EXPORT [^;]*?\b(\w+)\(|^\} (\w+);", code, re.MULTILINE):
        assert f"{{ #{''.join(name)} }}\n" in page
    shown = re.sub(r"\s+", "", "".join(re.findall(r"```c\n(.*?)```", page, re.DOTALL)))
    for line in code[code.index('extern "C" {') + 12 : code.rindex("#ifdef")].splitlines():
        if not line.startswith("#endif"):
            assert re.sub(r"\s+", "", line) in re.sub(r"/\*.*?\*/", "", shown), line


def test_each_struct_and_function_of_the_header_has_a_comment() -> None:
    _, parts = api_reference.header_parts((ROOT / "include" / "tenon.h").read_text())
    declared = [d for _, declarations in parts for d in declarations]
    structs = [d for d in declared if "{" in d.code and d.code.startswith("typedef struct")]
    assert len(structs) >= 9
    assert [d.name for d in structs if not d.comment] == []


def test_commands_and_settings_are_there(pages: dict[str, str]) -> None:
    from torch_tenon import config

    commands = re.findall(r"^## `tenon (.*?)`", pages["commands.md"], re.MULTILINE)
    files = {p.stem for p in (ROOT / "torch_tenon" / "cli").glob("[a-z]*.py")}
    files -= {"application", "installation", "programs"}
    assert files | {"export", "info", "run"} <= {c.split()[0].replace("-", "_") for c in commands}
    assert "--seconds" in pages["commands.md"] or "--seed" in pages["commands.md"]
    for setting in config.SETTINGS:
        assert f"## `{setting.variable}`" in pages["settings-in-short.md"]


def test_the_site_has_every_page_of_the_documents() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r": (\S+\.md)$", navigation, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert {p.name for p in (ROOT / "docs").glob("*.md")} <= set(listed)
    assert {f"reference/{name}" for name in api_reference.pages()} <= set(listed)
