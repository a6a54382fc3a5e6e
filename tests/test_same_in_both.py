"""Numbers and names that Python and C++ both have: each stands once in each language, and is the
same in both.

Sources are read as text, as much of Python's half runs where there is no extension.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from torch_tenon import config
from torch_tenon.api import memory_snapshots
from torch_tenon.builder import counts, server
from torch_tenon.builder.answer import Answer
from torch_tenon.compiler.wire import archive, plans
from torch_tenon.exporting import fourier, methods, program_file
from torch_tenon.frontends import eager
from torch_tenon.ir import program
from torch_tenon.reports.profiler import kineto, log
from torch_tenon.runtime import dtypes, interface, library, products, size_words

ROOT = Path(__file__).parents[1]
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def source(path: str) -> str:
    """A file of C or C++ without its comments."""
    return COMMENT.sub("", (ROOT / path).read_text())


def enumeration(path: str, name: str) -> dict[str, int]:
    """The numbers of an enumeration, by name."""
    found = re.search(rf"enum (?:class )?{name}\b[^{{]*{{([^}}]*)}}", source(path))
    assert found is not None, name
    numbers: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in found[1].split(","))):
        key, _, number = (part.strip() for part in entry.partition("="))
        numbers[key] = int(number) if number else len(numbers)
    return numbers


def constant(path: str, name: str) -> int:
    """The value of a constant, or of a macro, that is a shift of numbers at most."""
    found = re.search(rf"\b{name}\b(?: = |[ ])([^;,\n]*)", source(path))
    assert found is not None, name
    text = re.sub(r"\((?:int64_t|size_t)\)|(?:int64_t|size_t)\{(\d+)\}", r"\1", found[1])
    left, _, shift = text.strip("() ").partition("<<")
    return int(left, 0) << int(shift or 0)


def members(path: str, name: str) -> list[str]:
    """What a struct has, in order; none of it is a function with a body."""
    found = re.search(rf"struct {name} {{(.*?)\n}}", source(path), re.DOTALL)
    assert found is not None, name
    names = []
    for declaration in filter(str.strip, found[1].split(";")):
        function = re.search(r"\(\*(\w+)\)", declaration)
        plain = re.findall(r"(\w+)(?:\[\w+\])?(?:\s*=[^,]*|\{\})?(?:,|$)", declaration.strip())
        names += [function[1]] if function else plain
    return names


def in_order(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


def lower(names: Mapping[str, int]) -> dict[str, int]:
    return {name.lower(): number for name, number in names.items()}


def test_dtypes() -> None:
    """Those of C++ are compared with PyTorch's while the extension is loaded, with their sizes."""
    found = re.search(r"kNames =([^;]*);", source("csrc/runtime/layout.cpp"))
    assert found is not None
    assert "".join(re.findall(r'"([^"]*)"', found[1])).split(",") == list(dtypes.NAMES)
    common = re.findall(r"TENON_(\w+) = (\d+),?\n", source("include/tenon.h").split("enum {")[2])
    assert len(common) == 17
    assert {name.lower(): int(number) for name, number in common}.items() <= dtypes.NUMBERS.items()


HEADER = "include/tenon.h"
FILE = "csrc/runtime/program_file.h"
BUILDER = "csrc/pytorch/windows/builder.cpp"


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        (HEADER, "TENON_INTERFACE", interface.INTERFACE),
        (HEADER, "TENON_MOST_DIMENSIONS", interface.MOST_DIMENSIONS),
        (HEADER, "TENON_NO_BOUND", interface.NO_BOUND),
        (HEADER, "TENON_OUT_OF_MEMORY", interface.OUT_OF_MEMORY),
        (HEADER, "TENON_OUT_OF_RANGE", interface.OUT_OF_RANGE),
        (BUILDER, "kCallsOfPlan", server.CALLS_OF_PLAN),
        (BUILDER, "kMostRequest", server.MOST_REQUEST),
        (BUILDER, "kAlive", server.ALIVE),
        ("csrc/pytorch/windows/plan_store.h", "kInFloat32", eager.IN_FLOAT32),
        ("csrc/runtime/archive.h", "kDeepest", archive.DEEPEST),
        ("torch_tenon/exporting/fourier.c", "MOST_PRIME", fourier.MOST_PRIME),
        ("torch_tenon/targets/cpu/templates/matmul.h", "TENON_PANEL", program.PANEL),
        ("csrc/pytorch/device/blocks.h", "kSmallSegment", memory_snapshots.SMALL_SEGMENT),
    ],
)
def test_constants(path: str, name: str, value: int) -> None:
    assert constant(path, name) == value


@pytest.mark.parametrize(
    ("path", "name", "numbers"),
    [
        (
            "csrc/runtime/size_expression.h",
            "Word",
            {
                "constant": size_words.CONSTANT,
                "symbol": size_words.SYMBOL,
                "add": size_words.ADD,
                "multiply": size_words.MULTIPLY,
                "divide": size_words.DIVIDE,
                "modulo": size_words.MODULO,
                "exactly": size_words.EXACTLY,
            },
        ),
        (
            FILE,
            "Comparison",
            {
                "equal": methods.EQUAL,
                "not_equal": methods.DIFFERENT,
                "at_most": methods.AT_MOST,
                "less": methods.LESS,
            },
        ),
        (BUILDER, "Answer", {f"k{x.name.title().replace('_', '')}": x.value for x in Answer}),
        ("csrc/pytorch/windows/plan_store.h", "State", in_order(counts.STATES)),
        ("csrc/pytorch/device/profile.h", "Activity", in_order(log.ACTIVITIES)),
        (
            "csrc/pytorch/device/memory_history.h",
            "MemoryAction",
            in_order(memory_snapshots.ACTIONS),
        ),
        (
            "csrc/pytorch/record/recorder.h",
            "ExecuteMode",
            in_order(mode.replace("auto", "automatic") for mode in config.EXECUTE_MODES),
        ),
    ],
)
def test_enumerations(path: str, name: str, numbers: Mapping[str, int]) -> None:
    assert enumeration(path, name) == numbers


def test_kinds_of_sources_of_methods() -> None:
    kinds = enumeration(FILE, "Kind")
    python = {
        "input": program_file.INPUT,
        "weight": program_file.WEIGHT,
        "state": program_file.STATE,
    }
    assert python.items() <= kinds.items()


def test_kinds_in_plans() -> None:
    assert enumeration("csrc/runtime/plan.h", "Kind") == in_order(plans.SLOT_KINDS)
    where = ["IN_SLOT", "IN_KERNEL", "IN_TENSOR", "IN_RESULT", "IN_ARGUMENT", "IN_BYTES"]
    python = {name.removeprefix("IN_").lower(): getattr(plans, name) for name in where}
    assert enumeration("csrc/runtime/plan.h", "Where") == python
    fields = {name.lower(): getattr(plans, name) for name in ("SIZE", "STRIDE", "OFFSET")}
    assert enumeration("csrc/runtime/plan.h", "Field") == fields


def test_kinds_of_values() -> None:
    path = "csrc/runtime/value.h"
    kinds = enumeration(path, "Kind")
    assert kinds == {name: getattr(archive, name.upper()) for name in kinds}
    found = re.search(r"Kind : int {([^}]*)}", source(path).partition("struct Argument")[2])
    assert found is not None
    names = [name.strip() for name in found[1].split(",")]
    assert in_order(names) == {k: getattr(archive, f"{k.upper()}_ARGUMENT") for k in names}


@pytest.mark.parametrize(
    ("name", "struct"),
    [
        ("tenon_status", library.Status),
        ("tenon_options", library.Options),
        ("tenon_tensor", library.Tensor),
        ("tenon_tensor_info", library.TensorInfo),
        ("tenon_products_t", products.Table),
    ],
)
def test_structs(name: str, struct: type[ctypes.Structure]) -> None:
    assert members(HEADER, name) == [field[0] for field in struct._fields_]


def test_events_of_profiles() -> None:
    assert members("csrc/pytorch/device/profile.h", "ProfileEvent") == list(log.EVENT.names or ())
    path = "csrc/pytorch/execute/kineto.cpp"
    assert constant(path, "kCall") == kineto.Kind.CALL
    assert constant(path, "kRange") == kineto.Kind.RANGE
