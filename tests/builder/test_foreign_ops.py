"""Windows with ops that PyTorch does not have: what the builder process is told of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from builder.test_builder_process import kill_builders
from fresh_process import output

from torch_tenon.builder import foreign_ops
from torch_tenon.ops.lowerings.table import lowering

# Both kinds of op: one with a kernel in source, and one that is only called.
SCRIPT = """
    import json, sys, time
    from pathlib import Path
    import torch
    library = torch.library.Library("tenon_told", "DEF")
    library.define("halve(Tensor x) -> Tensor")
    library.impl("halve", lambda x: x / 2, "CPU")
    library.impl("halve", torch.empty_like, "Meta")
    import torch_tenon
    from torch_tenon import KernelSource, custom_op
    from torch_tenon.builder.counts import plan_counts
    from turns import settle

    factor = float(sys.argv[1])
    text = '''
    #include <stdint.h>
    void grow(float *result, const float *x, int64_t n) {
      for (int64_t i = 0; i < n; ++i) result[i] = x[i] * (float)FACTOR;
    }
    '''.replace("FACTOR", sys.argv[1])
    arguments = ["float32 result", "float32 x", "int64 numel(x)"]

    @custom_op(
        "tenon_told::grow(Tensor x) -> Tensor",
        kernels=[KernelSource("host", text, "grow", arguments)],
    )
    def grow(x):
        return torch.empty_like(x)

    # One that takes long to start is started again; here it has its time.
    torch.ones(1, device="tenon")
    torch_tenon._C.start_builder()
    folder, deadline = Path(torch_tenon.config.cache_directory()), time.monotonic() + 120
    while not any(path.is_socket() for path in folder.glob("builder-*")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    for turn in range(6):
        x = torch.rand(50, 20)
        y = torch.ops.tenon_told.halve(grow(x.to("tenon") + turn) - 1) * 3
        torch.testing.assert_close(y.cpu(), ((x + turn) * factor - 1) / 2 * 3)
        settle()
    counts = plan_counts()
    print(json.dumps([counts["hits"], counts["failed"], torch_tenon._C.builder_state()[0]]))
"""


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cache"
    kill_builders(tmp_path / "cache")


def run(cache: Path, factor: str) -> tuple[int, int]:
    """How many windows ran by plan, and how often a builder process was started."""
    hits, failed, starts = json.loads(
        output(
            SCRIPT,
            factor,
            TENON_CACHE_DIR=str(cache),
            TENON_PLAN="all",
            TENON_PLAN_FILES="1",
            TENON_BUILDER="process",
            TORCH_DEVICE_BACKEND_AUTOLOAD="0",
        )
    )
    assert failed == 0
    return hits, starts


def plans(cache: Path) -> int:
    return len(list((cache / "plans").glob("*.plan")))


@pytest.mark.slow
def test_the_builder_makes_their_plans_and_the_next_process_has_them(cache: Path) -> None:
    hits, starts = run(cache, "3.0")
    assert hits >= 2 and starts == 1
    made = plans(cache)
    assert made > 0
    again, _ = run(cache, "3.0")
    assert again > hits  # from the first time that the window comes
    assert plans(cache) == made


@pytest.mark.slow
def test_an_op_that_became_another_one_gets_plans_of_its_own(cache: Path) -> None:
    run(cache, "3.0")
    made = plans(cache)
    hits, _ = run(cache, "5.0")  # whose values are checked
    assert hits >= 2
    assert plans(cache) > made


@pytest.fixture
def defined() -> Iterator[torch.library.Library]:
    library = torch.library.Library("tenon_describes", "DEF")
    for name in ("plain", "lowered", "composed"):
        library.define(f"{name}(Tensor x, float y=2.) -> Tensor")
    yield library
    library._destroy()


@pytest.mark.usefixtures("defined")
def test_what_plans_look_into_is_not_described() -> None:
    text = foreign_ops.describe("tenon_describes::plain")
    assert text is not None
    told = json.loads(text)
    assert told["schema"] == "tenon_describes::plain(Tensor x, float y=2.) -> Tensor"
    assert told["kernels"] == []

    @lowering("tenon_describes.lowered")
    def lowered(build, x, y=2.0):
        return x

    assert foreign_ops.describe("tenon_describes::lowered") is None

    op = torch.ops.tenon_describes.composed.default
    torch._decomp.register_decomposition(op)(lambda x, y=2.0: x * y)
    assert foreign_ops.describe("tenon_describes::composed") is None


def test_definitions_replace_one_another() -> None:
    def text(schema: str) -> str:
        return json.dumps({"name": "tenon_new::op", "schema": schema, "tags": [], "kernels": []})

    for schema in ("tenon_new::op(Tensor x) -> Tensor", "tenon_new::op(Tensor(a!) x) -> ()"):
        foreign_ops.define(text(schema))
        foreign_ops.define(text(schema))
        assert str(torch.ops.tenon_new.op.default._schema) == schema
        assert foreign_ops.describe("tenon_new::op") == text(schema)


@pytest.mark.usefixtures("defined")
def test_an_op_that_is_there_for_good_is_not_replaced() -> None:
    other = {
        "name": "tenon_describes::plain",
        "schema": "tenon_describes::plain(Tensor x) -> Tensor",
    }
    with pytest.raises(ValueError, match="is not tenon_describes::plain"):
        foreign_ops.define(json.dumps({**other, "tags": [], "kernels": []}))
