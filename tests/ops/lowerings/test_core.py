"""Every core op that computes has loops, a library kernel, or a decomposition."""

from __future__ import annotations

from torch_tenon.ops import catalogue, manifest, native

# They compute nothing, or what they give depends on data and is no tensor of a known shape.
WITHOUT = {
    "aten::resize_": "changes memory, not values; Dynamo does not trace it",
    "aten::_local_scalar_dense": "a number that the host waits for",
    "aten::nonzero": "a shape that depends on data: such a graph runs by reference",
}


def test_core_ops_are_lowered() -> None:
    core = [op for op in native.load().values() if "core" in op.tags]
    assert len(core) > 180
    fallbacks = {op.name for op in core if catalogue.compiled(op) == "fallback"}
    # On targets of other memory, and in exported programs, these have a decomposition.
    of_the_host = {n for n in fallbacks if manifest.of(n).decomposition == manifest.EXPORTED}
    assert fallbacks - of_the_host == set(WITHOUT)
    assert {n.removeprefix("aten::")[:-2] for n in of_the_host} <= {
        "reflection_pad",
        "replication_pad",
    }
