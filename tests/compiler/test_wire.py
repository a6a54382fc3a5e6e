"""Windows and plans as bytes: Python reads and writes what the core does."""

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from against_cpu import executing
from torch import Tensor, nn
from torch.nn import functional as F

from torch_tenon import _C, KernelSource, custom_op, device
from torch_tenon.builder import foreign_ops, install
from torch_tenon.compiler.backend import KernelFile
from torch_tenon.compiler.plan import Plan, _Instance
from torch_tenon.compiler.wire import WireError, foreign_ops_of, plan_bytes, window_of
from torch_tenon.compiler.wire.archive import DTYPES, Reader, Writer
from torch_tenon.frontends.eager import build
from torch_tenon.ops.lowerings.table import CannotLower
from torch_tenon.ops.variants import overload

MAGIC = b"torch-tenon plan 8\n"


# Windows


def perceptron(x: Tensor) -> Any:
    layer = nn.Sequential(nn.Linear(6, 8), nn.GELU(approximate="tanh"), nn.LayerNorm(8))
    with torch.random.fork_rng([]):
        layer = layer.to(x.device)
    loss = F.cross_entropy(layer(x), torch.arange(len(x)).to(x.device) % 8)
    loss.backward()
    torch.optim.AdamW(layer.parameters()).step()
    return loss


def arguments_of_every_kind(x: Tensor) -> Any:
    y = x.to(torch.float64, memory_format=torch.contiguous_format)
    places = torch.arange(len(x), device=x.device)
    source = torch.ones_like(x, dtype=torch.float32, device=x.device)
    return (
        torch.scatter_reduce(x, 0, places[:, None].expand(-1, 6).contiguous(), source, "amax"),
        x[:, [0, 2]],
        x[places, None],
        torch.full((len(x), 2), 2.5, dtype=torch.bfloat16, device=x.device),
        torch.searchsorted(x[0].contiguous(), x, right=True),
        torch.clamp(y, min=None, max=1.5),
        x.std(0, correction=0),
        torch.add(x, 3, alpha=2),
        x * True + torch.tensor(2) - torch.tensor(0.5, dtype=torch.float64),
        torch.mul(x, 1 + 2j).real,
        torch.where(x > 0, x, float("nan")),
        torch.empty_like(x).copy_(x).to(torch.int32) % 3,
    )


def lists(x: Tensor) -> Any:
    parts = list(x.split(2))
    more = torch._foreach_add(parts, 1.5)
    torch._foreach_mul_(more, parts)
    return torch.cat([*parts, *more]), torch.stack([x, x * 2], 1), x.unbind(1)


def out_and_in_place(x: Tensor) -> Any:
    made, rest = torch.empty(0, device=x.device), torch.empty_like(x)
    torch.mul(x, 2, out=made)
    torch.sort(x, dim=1, out=(rest, torch.empty_like(x, dtype=torch.int64)))
    y = x.clone()
    y[1:] += y[:-1] * 0.5
    y.mul_(0.9).clamp_(max=3)
    y[:, 3] = 1.0
    y.t()[2].fill_(7)
    return made, rest, y


def pictures(x: Tensor) -> Any:
    y = x.repeat(1, 8).view(-1, 1, 6, 8).to(memory_format=torch.channels_last)
    weight = torch.ones(4, 1, 3, 3, device=x.device)
    y = F.max_pool2d(F.conv2d(y, weight, padding=1), 2)
    return F.interpolate(y, scale_factor=2.0), y.mean((2, 3))


def other_dtypes(x: Tensor) -> Any:
    dtypes = ("float16", "bfloat16", "int8", "uint8", "int16", "bool", "complex64", "complex128")
    return [x.to(getattr(torch, name)) for name in dtypes]


def library_calls(x: Tensor) -> Any:
    values, places = (x * 2).sort(1, descending=True)
    padded = F.pad(values, (0, 2))
    return (
        *(values + 1, places, padded.topk(2, 0), torch.fft.rfft(x, dim=0), x.cumsum(0)),
        *(torch.fft.irfft(torch.fft.rfft(x, dim=0), len(x), 0), x.t().contiguous().sort(1)),
    )


def numbers_that_change(x: Tensor) -> Any:
    numbers_that_change.count += 1  # type: ignore[attr-defined]
    k = numbers_that_change.count  # type: ignore[attr-defined]
    y = torch.add(x * (k / 7), x, alpha=k)
    return torch.lerp(y, x, k / 9) - k


numbers_that_change.count = 0  # type: ignore[attr-defined]


def of_another_package(x: Tensor) -> Any:
    return torch.ops.tenon_wire.twice(x + 1) - 1


PROGRAMS = [
    *(perceptron, arguments_of_every_kind, lists, out_and_in_place, pictures, other_dtypes),
    library_calls,
    *(numbers_that_change, of_another_package),
]


@custom_op(
    "tenon_wire::twice(Tensor x) -> Tensor",
    kernels=[
        KernelSource(
            "host",
            """
            #include <stdint.h>
            void twice(float *result, const float *x, int64_t n) {
              for (int64_t i = 0; i < n; ++i) result[i] = 2 * x[i];
            }
            """,
            "twice",
            ["float32 result", "float32 x", "int64 numel(x)"],
        )
    ],
)
def twice(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def structures_of(programs: Callable[[], Iterator[Callable[[], object]]]) -> dict[bytes, Any]:
    """The structures of windows that the programs want plans for, and what the core says of these
    windows."""
    found: dict[bytes, Any] = {}

    def ask(window: _C.Window, wait: bool) -> None:
        structure = window.structure()
        if structure and structure not in found:
            found[structure] = window
        window.finish()  # it may ask again

    _C.set_ask_for_plan(ask)
    try:
        with executing("compiled"):
            for program in programs():
                program()
                torch.tenon.synchronize(0)
    finally:
        _C.set_ask_for_plan(install._ask_for_plan)
    return found


@pytest.fixture(scope="module")
def windows() -> dict[bytes, Any]:
    """Of the programs above, and of others."""

    def all_programs() -> Iterator[Callable[[], object]]:
        for program in PROGRAMS:
            for n in (4, 4, 4, 5, 5, 6, 6, 7, 8, 9, 10):
                x = (torch.arange(n * 6.0).reshape(n, 6) / 7 - 1).to("tenon")
                yield lambda program=program, x=x: program(x)
        torch.set_default_dtype(torch.float64)
        try:
            for _ in range(3):
                yield lambda: torch.ones(3, device="tenon") / 3
        finally:
            torch.set_default_dtype(torch.float32)

    return structures_of(all_programs)


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.device == b.device and repr(a) == repr(b)
    return bool(a == b or (a != a and b != b))


def check_window(structure: bytes, window: _C.Window) -> None:
    """Python reads it, and the core reads the same of it."""
    found = window_of(structure, window.number)
    number, calls, slots = found.description
    assert number == window.number and found.calls == len(calls) and found.threads > 0
    assert found.foreign_ops == foreign_ops_of(structure)
    for name, _, arguments, _ in calls:
        assert len(arguments) == len(overload(name)._schema.arguments)
    assert all(len(slot) == 4 for slot in slots)
    assert _C.Window.of_structure(structure).structure() == structure


def test_windows_are_read(windows: dict[bytes, Any]) -> None:
    for structure, window in windows.items():
        check_window(structure, window)
    found = [window_of(structure) for structure in windows]
    assert len(found) > 30
    assert sum(bool(w.symbols) for w in found) >= 5
    assert {w.default_dtype for w in found} == {torch.float32, torch.float64}
    assert any(w.foreign_ops for w in found)
    text = repr([w.description for w in found])
    for kind in ("'number'", "'list'", "'argument'", "complex", "'amax'", "torch.bfloat16"):
        assert kind in text, kind


def test_a_window_says_what_its_program_does() -> None:
    x = torch.arange(12.0).reshape(3, 4).to("tenon")
    first = torch.tensor([True, False]).to("tenon")
    y = torch.tensor([1, 2], dtype=torch.uint16).to("tenon")

    def program() -> object:
        total = x.t().flip([1]).sum(0, dtype=torch.float64)
        return total.cpu(), torch.where(first, y, torch.tensor(3, dtype=torch.uint16)).cpu()

    (flip, total), (where,) = sorted(
        (window_of(s).description[1] for s in structures_of(lambda: iter([program] * 3))),
        key=len,
        reverse=True,
    )
    dense = ("tensor", 1, torch.float32, (4, 3), (1, 4), 0)
    given = ("tensor", 0, torch.float32, (4, 3), (1, 4), 0)
    assert same(flip, ("aten::flip", 0, [given, ("constant", [1])], [dense]))
    options = [("constant", [0]), ("constant", False), ("constant", torch.float64)]
    made = ("tensor", 2, torch.float64, (3,), (1,), 0)
    assert same(total, ("aten::sum.dim_IntList", 0, [dense, *options], [made]))
    kinds = [
        ("tensor", 0, torch.bool, (2,), (1,), 0),
        ("tensor", 1, torch.uint16, (2,), (1,), 0),
        ("constant", torch.tensor(3, dtype=torch.uint16)),
    ]
    fresh = ("tensor", 2, torch.uint16, (2,), (1,), 0)
    assert same(where, ("aten::where.self", 0, kinds, [fresh]))


def samples(names: Callable[[str], bool], most: int) -> Iterator[Callable[[], object]]:
    """Calls of PyTorch's op database, `most` of each op, each several times."""
    from torch.testing._internal.common_methods_invocations import op_db  # it takes seconds to load

    def moved(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.to("tenon")
        if type(x) in (list, tuple):
            return type(x)(map(moved, x))
        return {k: moved(y) for k, y in x.items()} if isinstance(x, dict) else x

    def call(op: Any, sample: Any) -> None:
        try:
            op.op(moved(sample.input), *moved(sample.args), **moved(sample.kwargs))
        except Exception:
            return  # what the device does not take has no window

    for op in op_db:
        if not names(op.name) or torch.float32 not in op.dtypes:
            continue
        for sample in itertools.islice(op.sample_inputs("cpu", torch.float32), most):
            for _ in range(3):
                yield lambda op=op, sample=sample: call(op, sample)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", ["selected", pytest.param("all", marks=pytest.mark.long)], ids=str)
def test_windows_of_the_op_database_are_read(part: str) -> None:
    most = 6 if part == "all" else 2
    found = structures_of(lambda: samples(lambda name: part == "all" or name[0] in "bl", most))
    assert len(found) > 100
    for structure, window in found.items():
        check_window(structure, window)


def test_what_is_damaged_raises_one_error(windows: dict[bytes, Any]) -> None:
    draw = random.Random(3)
    raised = 0
    for structure in windows:
        for _ in range(40):
            at = draw.randrange(len(structure))
            data = bytearray(structure)
            kind = draw.randrange(3)
            if kind == 0:
                del data[at:]
            elif kind == 1:
                data[at] ^= 1 << draw.randrange(8)
            else:
                data[at : at + draw.randrange(4)] = draw.randbytes(draw.randrange(4))
            try:
                window_of(bytes(data))
                foreign_ops_of(bytes(data))
            except WireError:
                raised += 1
    assert raised > 100


def test_each_way_to_end_early_is_noticed(windows: dict[bytes, Any]) -> None:
    structure = min(windows, key=len)
    for end in range(len(structure)):
        with pytest.raises(WireError):
            window_of(structure[:end])


# Fields


@pytest.mark.parametrize(
    ("number", "data"),
    [
        *((0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (-65, "8101")),
        *(((1 << 63) - 1, "feffffffffffffffff01"), (-(1 << 63), "ffffffffffffffffff01")),
    ],
)
def test_numbers_are_short(number: int, data: str) -> None:
    writer = Writer()
    writer.number(number)
    writer.numbers([number])
    assert writer.bytes.hex() == data + "02" + data
    reader = Reader(writer.bytes)
    assert (reader.number(), reader.numbers()) == (number, [number]) and reader.at_end()


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1])
def test_numbers_have_64_bits(number: int) -> None:
    with pytest.raises(WireError, match="64 bits"):
        Writer().number(number)
    for data in ("ffffffffffffffffff03", "ff" * 20):
        with pytest.raises(WireError):
            Reader(bytes.fromhex(data)).number()


def test_lists_are_no_longer_than_the_data() -> None:
    writer = Writer()
    writer.number(1 << 40)
    for read in (Reader.numbers, Reader.texts, Reader.raw, Reader.skip_numbers):
        with pytest.raises(WireError, match="longer than the data"):
            read(Reader(writer.bytes))


def test_dtypes_have_the_numbers_that_pytorch_gives_them() -> None:
    graph = torch._C.Graph()
    assert [graph.insertConstant(dtype).toIValue() for dtype in DTYPES] == list(range(len(DTYPES)))


# Plans


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where plans are kept meanwhile."""
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    _C.set_plan_directory(str(path), "an identity")
    yield path
    _C.set_plan_directory("", "")


def kept(folder: Path) -> bytes:
    """The plan in the file that is there, and its sizes."""
    (path,) = (folder / "plans").glob("*.plan")
    data = path.read_bytes()
    for path in (folder / "plans").iterdir():
        path.unlink()
    assert data.startswith(MAGIC)
    reader = Reader(data[len(MAGIC) + 8 :])
    assert reader.text() == "an identity"
    reader.raw()  # the structure
    reader.numbers()  # inputs
    reader.numbers()  # outputs
    assert reader.text() == ""  # no error
    reader.raw()  # facts
    reader.raw()  # extras
    return reader.raw()


@pytest.mark.slow
def test_the_core_reads_plans_and_keeps_their_bytes(
    windows: dict[bytes, Any], folder: Path
) -> None:
    counts = collections.Counter[str]()
    for structure in windows:
        window, found = _C.Window.of_structure(structure), window_of(structure)
        try:
            built = build(found.description, found.symbols)
            plan = Plan(built.program, device.backend())
        except CannotLower:
            continue
        if found.symbols:
            hints = [s.hint for s in plan.program.sizes]
            data = _Instance(plan, hints, sized=True).data()
        else:
            data = plan.instance()
        constants = [s.tensor for s in plan.program.storages if s.tensor is not None]
        count = len(plan.kernels)
        sums = [0x9E3779B97F4A7C15 * (k + 1) % (1 << 64) for k in range(count)]
        files = [KernelFile(f"kernels/{k}.so", f"kernel{k}", sums[k]) for k in range(count)]
        kind = "sized" if found.symbols else "plan"
        # Nobody runs them.
        beside = plan_bytes(data, files)
        assert _C.SizedPlan(beside, [16] * count, constants)
        whole = plan_bytes(data, files, constants)
        made = _C.SizedPlan(whole, [16] * count)
        places = {"inputs": built.inputs, "outputs": built.outputs}
        assert window.finish(plan=made, **places, bytes=whole)
        assert kept(folder) == whole
        assert len(whole) > len(beside) or not constants
        counts[kind] += 1
        counts["call"] += sum("op" in step for step in data["steps"])
    assert counts["plan"] > 30 and counts["sized"] >= 5 and counts["call"] > 10, counts


DTYPES_OF_TENSORS = ("float32", "int64", "bool", "bfloat16", "complex64", "float8_e4m3fn", "uint16")


SIZED = {"example": 24, "words": [0, 4, 1, 0, 3]}


def a_tensor(draw: random.Random) -> dict[str, Any]:
    rank = draw.randrange(4)
    return {
        "slot": draw.randrange(3),
        "dtype": draw.choice(DTYPES_OF_TENSORS),
        "sizes": [draw.choice([0, 1, 2, 3, 500, SIZED]) for _ in range(rank)],
        "strides": [draw.choice([0, 1, 7, 300, SIZED]) for _ in range(rank)],
        "offset": draw.choice([0, 3, 1000, SIZED]),
    }


def a_value(type: Any, length: int | None, draw: random.Random) -> Any:
    """An argument as a plan has it."""
    kind = type.kind()
    if kind == "OptionalType":
        return None if draw.random() < 0.4 else a_value(type.getElementType(), length, draw)
    if kind == "ListType":
        element = type.getElementType()
        if str(element) == "Tensor":
            return [a_tensor(draw) for _ in range(draw.randrange(3))]
        if str(element) == "Optional[Tensor]":
            return [draw.choice([None, a_tensor(draw)]) for _ in range(draw.randrange(3))]
        if length and str(element) in ("int", "float") and draw.random() < 0.3:
            return 3 if str(element) == "int" else 1.5
        return [a_value(element, None, draw) for _ in range(draw.randrange(4))]
    complex_number = {"complex": [1.0, -2.0]}
    values: dict[str, list[Any]] = {
        "TensorType": [a_tensor(draw), None, 2, 2.5, True, complex_number, -0.0, 1 << 40],
        "IntType": [SIZED, 0, 1, -1, 70, -(1 << 33), *({"torch": x} for x in ("float32", "bits16"))]
        + [{"torch": x} for x in ("channels_last", "preserve_format", "strided", "jagged")],
        "FloatType": [0.5, 2, -1e300, float("inf"), a_tensor(draw)],
        "BoolType": [True, False],
        "NumberType": [1, 2.5, True, complex_number, a_tensor(draw), -(1 << 62)],
        "StringType": ["", "mean", "é"],
        "DeviceObjType": ["cpu", "tenon:0", "tenon:1", "meta"],
    }
    return draw.choice(values.get(kind, [None]))


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(3))
def test_the_core_reads_calls_of_every_op(turn: int) -> None:
    """Of each op with its defaults, then of some with others."""
    draw = random.Random(turn)
    constants = [
        torch.tensor(3.0),
        torch.arange(6).view(2, 3).t(),
        torch.ones(2, dtype=torch.float8_e5m2),
        torch.zeros(0, 3, dtype=torch.bool),
        torch.tensor([1 + 2j]),
    ]
    counts = collections.Counter[bool]()
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::") or (turn and draw.random() < 0.7):
            continue
        arguments = {
            a.name: a_value(a.type, a.N, draw)
            for a in schema.arguments
            if not a.has_default_value() or (turn and draw.random() < 0.5)
        }
        step = {
            "name": "a step",
            "op": schema.name,
            "overload": schema.overload_name,
            "route": "fallback",
            "counted": schema.name,
            "call": draw.choice([-1, 0, 5]),
            "arguments": arguments,
            "results": [None, a_tensor(draw)],
            "allocated": [1],
            "released": [0, 300],
            "detail": "? numbers",
            "detail_sizes": [SIZED],
            "calls": [0, 1],
            "bytes": 1 << 35,
            "operations": SIZED,
        }
        places = draw.sample(range(5), 5)
        data: Any = {
            "slots": [["input", 0, SIZED], ["output", SIZED], ["unused", 0]]
            + [["constant", k, 8] for k in places],
            "inputs": [0],
            "outputs": [1],
            "results": [a_tensor(draw)],
            "arena_bytes": 1 << 20,
            "steps": [step],
        }
        try:
            _C.SizedPlan(plan_bytes(data, (), constants), [])
        except (RuntimeError, WireError):  # no op that is called, or of others' arguments
            counts[False] += 1
            continue
        counts[True] += 1
    assert counts[True] > (500 if turn else 2000)


def test_constants_come_behind_the_steps() -> None:
    data: Any = {
        "slots": [["constant", 1, 4], ["constant", 0, 24]],
        "inputs": [],
        "outputs": [],
        "results": [],
        "arena_bytes": 0,
        "steps": [],
    }
    constants = [torch.arange(6.0).view(2, 3).t(), torch.tensor(7, dtype=torch.int32)]
    beside, whole = plan_bytes(data), plan_bytes(data, (), constants)
    assert beside[:-2] == whole[: len(beside) - 2] and beside.endswith(b"\0\0")
    reader = Reader(whole[len(beside) - 2 :])
    assert reader.count() == 2
    assert (reader.dtype(), reader.numbers()) == (torch.float32, [3, 2])
    assert reader.raw() == constants[0].contiguous().numpy().tobytes()
    assert (reader.dtype(), reader.numbers(), reader.raw()) == (torch.int32, [], b"\7\0\0\0")
    assert reader.count() == 0 and reader.at_end()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "lacks 'self'"),
        ({"self": 1, "other": 2, "third": 3}, "does not take all"),
        ({"self": "x", "other": 2}, "no number"),
        ({"self": 1, "other": 2, "alpha": 1 << 64}, "64 bits"),
    ],
)
def test_what_an_op_does_not_take_has_no_bytes(arguments: dict[str, Any], text: str) -> None:
    step = {"name": "", "op": "aten::add", "overload": "Tensor", "route": "", "counted": ""}
    step |= {"call": -1, "arguments": arguments, "results": [], "allocated": [], "released": []}
    step |= {"detail": "", "detail_sizes": [], "calls": [], "bytes": 0, "operations": 0}
    data: Any = {"slots": [], "inputs": [], "outputs": [], "results": [], "arena_bytes": 0}
    with pytest.raises(WireError, match=text):
        plan_bytes(data | {"steps": [step]})


def test_what_is_no_plan_has_no_bytes() -> None:
    data: Any = {"slots": [["nowhere", 0]], "inputs": [], "outputs": [], "results": []}
    for broken in (data, data | {"arena_bytes": 0, "steps": []}, {}):
        with pytest.raises(WireError):
            plan_bytes(broken)


def test_ops_of_another_package_are_told_before_their_windows_are_read(
    windows: dict[bytes, Any],
) -> None:
    told = {text for structure in windows for text in foreign_ops_of(structure)}
    assert told == {foreign_ops.describe("tenon_wire::twice")}
