"""The manifest is read strictly, and its check finds what is wrong and names the nearest."""

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from torch_tenon import _C
from torch_tenon.frontends.eager import route_of
from torch_tenon.ops import manifest, native
from torch_tenon.ops.manifest import Entry, ManifestError, Problem
from torch_tenon.ops.manifest_check import check


def _check(*entries: Entry, **have: set[str] | None) -> list[str]:
    implemented: dict[str, set[str] | None] = {
        "registered": None,
        "decompositions": set(),
        "lowerings": set(),
        "library": None,
    }
    problems = check(entries, **(implemented | have))  # type: ignore[arg-type]
    return [str(problem) for problem in problems]


def _about(problems: list[str], op: str) -> list[str]:
    return [p for p in problems if p.startswith(f"{op}: ")]


@pytest.mark.slow
def test_the_manifest_itself_is_right() -> None:
    entries = manifest.read()
    assert len(entries) > 40
    named = [op for entry in entries for op in entry.ops]
    assert list(manifest.load()) == named
    decompositions = set(manifest.names_with("route", "decomposed"))
    lowered = {op for op in native.load() if manifest.of(op).route == "lowered"}
    lowerings = {op for op in lowered if route_of(op) == "lowered"}
    assert _check(*entries, decompositions=decompositions, lowerings=lowerings) == []
    parts = [e for entry in entries for e in (entry, *entry.overloads.values())]
    used = {name for e in parts for name, value in e._asdict().items() if value}
    assert used == set(Entry._fields)
    text = manifest.MANIFEST.read_text()
    top = text[: text.index("- ops")]
    for name in used:  # each field is explained
        assert re.search(rf"^#   {name}  |`{name}`", top, re.MULTILINE), name


def test_every_field_is_read() -> None:
    entry = manifest.load()["aten::_copy_from_and_resize"]
    assert entry.route == "kernel" and entry.why
    assert entry.host_arguments == ("self", "dst") and entry.mutates == ("dst",)
    assert manifest.of("aten::index.Tensor") == Entry(
        ("aten::index",),
        host_arguments=("indices",),
        recorded=True,
        unsigned=True,
        complex="whole",
        sizes="follow",
    )


def test_an_overload_has_what_is_said_of_it_or_of_its_name() -> None:
    of = manifest.of
    assert of("aten::lerp_.Scalar").run_time_numbers == "when_they_change"
    assert of("aten::lerp_.Scalar").route == "lowered" and of("aten::lerp.Tensor").route == ""
    for name in ("aten::masked_fill.Scalar", "aten::masked_fill_.Scalar"):
        assert of(name).run_time_numbers == "when_they_change"
    assert of("aten::masked_fill.Tensor").run_time_numbers == ""
    assert of("aten::div.Tensor").size_arguments == ("other",)  # with what holds for all
    # An in-place form with an entry of its own has nothing of the functional one's.
    assert of("aten::copy_").complex == "" and of("aten::copy").complex == "whole"
    assert of("aten::nothing.of_the_kind") is manifest.NOTHING


def test_what_a_build_wrote_counts_for_the_text_that_it_read(tmp_path: Path) -> None:
    path = tmp_path / "manifest.yaml"
    path.write_text("- {ops: [abs], route: kernel}")
    built = {"of": hashlib.sha256(path.read_bytes()).hexdigest()}
    rows = [{"ops": ["aten::add"], "route": "lowered"}]
    path.with_suffix(".json").write_text(json.dumps(built | {"rows": rows}))
    assert manifest.read(path) == [Entry(("aten::add",), "lowered")]
    path.write_text("- {ops: [abs], route: fallback}")
    assert manifest.read(path) == [Entry(("aten::abs",), "fallback")]
    for damaged in ("", "[]", "{}"):
        path.with_suffix(".json").write_text(damaged)
        assert manifest.read(path) == [Entry(("aten::abs",), "fallback")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- ops: [", "not valid YAML"),
        ("ops: [add]", "must be a list of entries"),
        ("- add", "entry 1 of .* must be a mapping with a list of `ops`"),
        ("- {ops: [], route: kernel}", "must be a mapping with a list of `ops`"),
        ("- {ops: [add.Tensor], route: kernel}", "namespace::name"),
        ("- {ops: [add], rout: kernel}", "unknown field 'rout'; the nearest is route"),
        (
            "- {ops: [abs], route: kernels}",
            "aten::abs: `route` must be .*'kernels'; the nearest is kernel",
        ),
        ("- {ops: [abs], sizes: folow}", "`sizes` must be .*'folow'; the nearest is follow"),
        ("- {ops: [abs], host_layouts: [Spars]}", "must be .*'Spars'; the nearest is Sparse"),
        ("- {ops: [abs], partial: 1}", "`partial` must be true or false"),
        ("- {ops: [abs], route: kernel, why: [no]}", "`why` must be one line"),
        ("- {ops: [abs], route: kernel, mutates: self}", "`mutates` must be a list"),
        ("- {ops: [abs], overloads: [out]}", "`overloads` must be a mapping"),
        ("- {ops: [abs], overloads: {out: 1}}", "`overloads` has 'out' twice, or nothing"),
        (
            "- {ops: [abs], overloads: {out: {whole: true}, default out: {whole: true}}}",
            "`overloads` has 'out' twice",
        ),
        ("- {ops: [abs], overloads: {out: {rout: kernel}}}", "overload out: unknown field 'rout'"),
        ("- {ops: [abs], overloads: {out: {overloads: {}}}}", "unknown field 'overloads'"),
    ],
)
def test_a_malformed_manifest_is_explained(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "manifest.yaml"
    path.write_text(text)
    with pytest.raises(ManifestError, match=message):
        manifest.read(path)


def test_an_op_named_twice_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = [Entry(("aten::abs",), "fallback"), Entry(("aten::sin", "aten::abs"))]
    monkeypatch.setattr(manifest, "read", lambda: twice)
    with pytest.raises(ManifestError, match="aten::abs is named twice"):
        manifest.load.__wrapped__()
    assert _check(*twice) == ["aten::abs: is named 2 times; keep one"]


def test_an_unknown_op_names_the_nearest() -> None:
    assert _check(Entry(("aten::lerpp",), "fallback")) == [
        "aten::lerpp: is no op of PyTorch; the nearest is aten::lerp"
    ]
    scaler = Entry(("aten::lerp",), overloads={"Scaler": Entry(route="fallback")})
    assert _check(scaler) == ["aten::lerp: has no overload Scaler; the nearest is Scalar"]
    assert _check(Entry(("mine::anything",), "fallback", host_arguments=("whatever",))) == []
    (problem,) = _check(Entry(("aten::_foreach_max",), each="amix"))
    assert problem.endswith(
        "names aten::amix, which is no op of PyTorch; the nearest is aten::amin"
    )


def test_arguments_must_be_arguments_of_the_op() -> None:
    (problem,) = _check(Entry(("aten::index",), host_arguments=("indexes",)))
    assert re.search(r"names indexes, .* of index\.Tensor\(.*the nearest is indices$", problem)
    (problem,) = _check(Entry(("aten::add",), mutates=("alpha",)))
    assert "names alpha, which is no tensor argument" in problem
    (problem,) = _check(Entry(("aten::add_",), mutates=("self",)))
    assert "as the schema does already" in problem
    (problem,) = _check(Entry(("aten::zeros",), size_arguments=("sizes",)))
    assert re.search(r"names sizes, which is no number of .*the nearest is size$", problem)
    (problem,) = _check(Entry(("aten::cat",), size_rule="cats"), size_rules={"cat"})
    assert problem.endswith("which the core has not; the nearest is cat")


def test_a_route_needs_its_implementation() -> None:
    problems = _check(Entry(("aten::relu",), "lowered"), lowerings=set())
    assert _about(problems, "aten::relu") == [
        "aten::relu: has route lowered and no lowering; implement it or change its route"
    ]
    assert len(problems) == 3  # with the in-place form and the one with out=
    problems = _check(
        Entry(("aten::view",), "kernel"),
        Entry(("aten::relu",), "decomposed"),
        Entry(("aten::convolution_overrideable",), "library"),
        registered={"aten::views", "aten::relu"},
        decompositions={"aten::relu6"},
        library=set(),
    )
    (view,) = _about(problems, "aten::view")
    assert view.startswith("aten::view: has route kernel and no kernel registered for the device")
    assert view.split(";")[1] == " the nearest is aten::views"
    (relu,) = _about([p for p in problems if "no decomposition" in p], "aten::relu")
    assert relu.startswith("aten::relu: has route decomposed and no decomposition; the nearest")
    (other,) = _about(problems, "aten::convolution_overrideable")
    assert "has route library and no library kernel" in other
    # What is registered cannot be known without the core.
    assert _check(Entry(("aten::view",), "kernel"), registered=None) == []


def test_an_implementation_needs_an_entry() -> None:
    entries = (
        Entry(("aten::lerp",), overloads={"Scalar": Entry(route="kernel")}),
        Entry(("aten::silu",), "fallback"),
    )
    kernels = {"aten::lerp.Scalar", "aten::lerp_.Scalar", "aten::lerp.Scalar_out"}
    assert _check(*entries, registered=kernels) == []
    assert _check(*entries, registered={*kernels, "aten::lerp.Tensor", "mine::op"}) == [
        "aten::lerp.Tensor: has a kernel registered for the device and no entry with a route; "
        "the nearest is aten::lerp; add it"
    ]
    assert _check(*entries, lowerings={"aten::silu"}) == [
        "aten::silu: has a lowering, but route fallback; change one"
    ]


def test_problems_print_as_one_line() -> None:
    assert str(Problem("aten::abs", "is odd")) == "aten::abs: is odd"


@pytest.mark.parametrize("index", [torch.tensor([0, 2]), torch.tensor([True, False, True])])
def test_indices_on_the_host(index: Tensor) -> None:
    pytest.importorskip("torch_tenon._C")
    x = torch.arange(3.0)
    there = x.to("tenon")
    torch.testing.assert_close(there[index].cpu(), x[index])
    there[index] = 5
    x[index] = 5
    torch.testing.assert_close(there.cpu(), x)


@pytest.mark.slow
def test_ops_whose_devices_pytorch_does_not_check_say_what_may_be_on_the_host() -> None:
    """`device_check: NoCheck`: the kernel looks itself, or takes tensors of any device. Where the
    op is composed of others, its parts are asked (csrc/pytorch/execute/reference.cpp)."""
    from torchgen.gen import parse_native_yaml
    from torchgen.model import DeviceCheckType

    folder = native.packaged() / "ATen" / "native"
    parsed = parse_native_yaml(str(folder / "native_functions.yaml"), str(folder / "tags.yaml"))
    text = (folder / "native_functions.yaml").read_text()
    # TensorIterator checks devices for the ops that it serves.
    served = {
        block.split("(", 1)[0]
        for block in text.split("- func: ")
        if re.search("NoCheck.*TensorIterator|inherits: TensorIteratorBase", block)
    }
    free = set()
    for op in parsed.native_functions:
        name, known = f"aten::{op.func.name}", native.load().get(f"aten::{op.func.name}")
        tensors = [a for a in op.func.arguments.flat_non_out if a.type.is_tensor_like()]
        delegate = str(op.structured_delegate)
        if (
            op.device_check is DeviceCheckType.NoCheck
            and not {str(op.func.name), delegate} & served
            and len(tensors) > 1
            and known is not None
            and known.composite is None
            and {"CPU", "CUDA"} <= set(known.backends)
        ):
            free.add(name)
    told = {name for name in free if manifest.of(name).host_arguments}
    check_themselves = {
        "aten::_validate_compressed_sparse_indices",
        "aten::set_.source_Tensor",
        "aten::copy_sparse_to_sparse_",
    }
    assert free - told <= check_themselves, free - told - check_themselves
    assert len(free & told) >= 6


def test_rules_of_ops_are_given_while_the_package_is_loaded() -> None:
    """Threads read them without a lock."""
    with pytest.raises(RuntimeError, match="while torch_tenon is loaded, not later"):
        _C.set_op_rule(["aten::add"], "", manifest.load()["aten::add"])
