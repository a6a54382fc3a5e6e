"""The manifest is read strictly, and its check finds what is wrong and names the nearest."""

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from torch_tenon.frontends.eager import route_of
from torch_tenon.ops import manifest
from torch_tenon.ops.manifest import Entry, ManifestError, Problem


def _check(*entries: Entry, **have: set[str] | None) -> list[str]:
    implemented: dict[str, set[str] | None] = {
        "registered": None,
        "decompositions": set(),
        "lowerings": set(),
        "library": None,
    }
    problems = manifest.check(entries, **(implemented | have))  # type: ignore[arg-type]
    return [str(problem) for problem in problems]


def test_the_manifest_itself_is_right() -> None:
    entries = manifest.read()
    assert len(entries) > 40
    assert list(manifest.load().values()) == entries
    decompositions = {e.op for e in entries if e.route == "decomposed"}
    lowerings = {e.op for e in entries if e.route == "lowered" and route_of(e.op) == "lowered"}
    assert _check(*entries, decompositions=decompositions, lowerings=lowerings) == []


def test_every_field_is_read() -> None:
    entry = manifest.load()["aten::_copy_from_and_resize"]
    assert entry.route == "kernel" and entry.why
    assert entry.host_arguments == ("self", "dst") and entry.mutates == ("dst",)
    assert manifest.load()["aten::index.Tensor"] == Entry(
        "aten::index.Tensor", "fallback", host_arguments=("indices",)
    )


def test_what_a_build_wrote_counts_for_the_text_that_it_read(tmp_path: Path) -> None:
    path = tmp_path / "manifest.yaml"
    path.write_text("- {op: aten::abs, route: kernel}")
    built = {"of": hashlib.sha256(path.read_bytes()).hexdigest()}
    rows = [{"op": "aten::add.Tensor", "route": "lowered"}]
    path.with_suffix(".json").write_text(json.dumps(built | {"rows": rows}))
    assert manifest.read(path) == [Entry("aten::add.Tensor", "lowered")]
    path.write_text("- {op: aten::abs, route: fallback}")
    assert manifest.read(path) == [Entry("aten::abs", "fallback")]
    for damaged in ("", "[]", "{}"):
        path.with_suffix(".json").write_text(damaged)
        assert manifest.read(path) == [Entry("aten::abs", "fallback")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- op: [", "not valid YAML"),
        ("op: aten::add.Tensor", "must be a list of entries"),
        ("- aten::add.Tensor", "entry 1 of .* must be a mapping with an `op`"),
        ("- {op: add.Tensor, route: kernel}", "namespace::name"),
        ("- {op: aten::add.Tensor, rout: kernel}", "unknown field 'rout'; the nearest is route"),
        (
            "- {op: aten::abs, route: kernels}",
            "aten::abs: `route` must be .*'kernels'; the nearest is kernel",
        ),
        ("- {op: aten::abs}", "`route` must be one of"),
        ("- {op: aten::abs, route: kernel, why: [no]}", "`why` must be one line"),
        ("- {op: aten::abs, route: kernel, mutates: self}", "`mutates` must be a list"),
    ],
)
def test_a_malformed_manifest_is_explained(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "manifest.yaml"
    path.write_text(text)
    with pytest.raises(ManifestError, match=message):
        manifest.read(path)


def test_an_op_listed_twice_does_not_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    twice = Entry("aten::abs", "fallback")
    monkeypatch.setattr(manifest, "read", lambda: [twice, twice])
    with pytest.raises(ManifestError, match="aten::abs is listed twice"):
        manifest.load.__wrapped__()
    assert _check(twice, twice) == ["aten::abs: is listed 2 times; keep one entry"]


def test_an_unknown_op_names_the_nearest() -> None:
    assert _check(Entry("aten::lerp_.Scaler", "fallback")) == [
        "aten::lerp_.Scaler: is no op of PyTorch; the nearest is aten::lerp_.Scalar"
    ]
    assert _check(Entry("mine::anything", "fallback", host_arguments=("whatever",))) == []


def test_arguments_must_be_tensor_arguments_of_the_op() -> None:
    (problem,) = _check(Entry("aten::index.Tensor", "fallback", host_arguments=("indexes",)))
    assert re.search(r"names indexes, .* of index\.Tensor\(.*the nearest is indices$", problem)
    (problem,) = _check(Entry("aten::add.Tensor", "fallback", mutates=("alpha",)))
    assert "names alpha, which is no tensor argument" in problem
    (problem,) = _check(Entry("aten::add_.Tensor", "fallback", mutates=("self",)))
    assert "as the schema does already" in problem


def test_a_route_needs_its_implementation() -> None:
    (problem,) = _check(Entry("aten::relu", "lowered"), lowerings=set())
    assert problem == (
        "aten::relu: has route lowered and no lowering; implement it or change its route"
    )
    problems = _check(
        Entry("aten::view", "kernel"),
        Entry("aten::relu", "decomposed"),
        Entry("aten::convolution_overrideable", "library"),
        registered={"aten::views", "aten::relu"},
        decompositions={"aten::relu6"},
        library=set(),
    )
    assert [p.split(";")[0] for p in problems[:3]] == [
        "aten::view: has route kernel and no kernel registered for the device",
        "aten::relu: has route decomposed and no decomposition",
        "aten::convolution_overrideable: has route library and no library kernel",
    ]
    assert "the nearest is aten::views" in problems[0]
    # What is registered cannot be known without the core.
    assert _check(Entry("aten::view", "kernel"), registered=None) == []


def test_an_implementation_needs_an_entry() -> None:
    entries = Entry("aten::lerp.Scalar", "kernel"), Entry("aten::silu", "fallback")
    kernels = {"aten::lerp.Scalar", "aten::lerp_.Scalar", "aten::lerp.Scalar_out"}
    assert _check(*entries, registered=kernels) == []
    assert _check(*entries, registered={*kernels, "aten::lerp.Tensor", "mine::op"}) == [
        "aten::lerp.Tensor: has a kernel registered for the device and no entry; "
        "the nearest is aten::lerp.Scalar; add it"
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
