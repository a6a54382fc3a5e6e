"""What work-groups read, staged in local memory: each row once for all of its passes."""

import pytest
import torch
from fresh_process import output
from needs import opencl
from torch.nn import functional as F

pytestmark = opencl


def table(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(rows, columns).to(dtype)


# Sizes that no work-group divides; the rows of a work-group are one or several.
PROGRAMS = {
    "long rows": (lambda x: torch.softmax(x, 1) + 1, lambda: [table(13, 1031)]),
    "short rows": (lambda x: torch.softmax(x, 1), lambda: [table(71, 19)]),
    "rows with gaps": (lambda x: F.layer_norm(x[:, 3:20], (17,)), lambda: [table(50, 23)]),
    "every other": (lambda x: x[:, ::2].softmax(1), lambda: [table(9, 331)]),
    "backwards": (lambda x: x.flip(1).log_softmax(1), lambda: [table(9, 131)]),
    "masked": (
        lambda x, m: x.masked_fill(m, float("-inf")).softmax(1),
        lambda: [table(21, 77), torch.rand(21, 77) < 0.3],
    ),
    "bytes": (lambda x: (x.long() * 3).sum(1), lambda: [table(21, 301, torch.int8)]),
    "half": (lambda x: x.float().var(1), lambda: [table(21, 301, torch.float16)]),
    # ... which are staged a few at a time: all have to be done with those before.
    "rows in rows": (lambda x: x[:, :, 1:301].sum((1, 2)), lambda: [torch.randn(13, 40, 302)]),
    "columns": (lambda x: x.softmax(0), lambda: [table(301, 21)]),
    "looked up": (
        lambda x, k: x[k].softmax(1),
        lambda: [table(21, 77), torch.randint(0, 21, (9,))],
    ),
}


def hold_against_cpu() -> None:
    import torch_tenon
    from torch_tenon.builder.counts import plan_counts
    from torch_tenon.compiler.loops.stage import stage
    from torch_tenon.targets.opencl import generate, layout

    class Staged(layout.GroupLayout):
        def __init__(self, group, kept, shape, capabilities) -> None:
            super().__init__(group, kept, shape, capabilities)
            if self.shared is not None:
                local = torch_tenon.target().backend.capabilities.spaces["shared"]
                self.tree = stage(self.tree, "shared", local // 4)

    generate.GroupLayout = Staged
    backend, sources = torch_tenon.target().backend, []
    write = backend.kernel

    def kernel(group, kept):
        made = write(group, kept)
        sources.append(made.source)
        return made

    backend.kernel = kernel
    torch.manual_seed(0)  # a sum of thousands may all but cancel
    given = {name: make() for name, (_, make) in PROGRAMS.items()}
    moved = {name: [x.to("tenon") for x in arguments] for name, arguments in given.items()}
    for _ in range(3):
        found = {name: f(*moved[name]) for name, (f, _) in PROGRAMS.items()}
        found = {name: result.cpu() for name, result in found.items()}
    for name, (f, _) in PROGRAMS.items():
        expected = f(*given[name])
        torch.testing.assert_close(
            found[name], expected, rtol=1e-4, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}"
        )
    assert plan_counts()["failed"] == 0, plan_counts()
    staged = [source for source in sources if " staged" in source]
    # A driver may have a barrier in each loop that nobody asked for, so results do not tell.
    (tiles,) = (source.partition(" j0_tile = 0;")[2] for source in staged if "j0_tile" in source)
    assert tiles.splitlines()[1].strip().startswith("barrier("), tiles
    print(len(staged))


@pytest.mark.slow
def test_staged_rows_agree_with_the_cpu() -> None:
    code = """
        import sys
        sys.path.insert(0, "targets/opencl")
        from test_staged import *
        hold_against_cpu()
    """
    given = {"TENON_EXECUTE": "compiled", "TENON_TARGET": "opencl", "TENON_OPENCL_LAYOUT": "gpu"}
    assert int(output(code, **given)) >= 8
