"""Programs on a device that records kernels: runs that are replayed give what the model gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from fresh_process import output
from needs import opencl

pytestmark = [opencl, pytest.mark.slow]

# Two methods over one table and one state, for any number of rows; and what a sequence of calls
# gives, in which the state is reset now and then.
EXPORT = """
    import sys
    import numpy as np
    import torch, torch_tenon
    from torch import nn

    class Add(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.layer = nn.Embedding(9, 16), nn.Linear(16, 16)
            self.register_buffer("seen", torch.zeros(16))

        def forward(self, ids):
            x = self.layer(self.words(ids)).softmax(-1) @ self.layer.weight
            self.seen += x.sum(0)
            return x, self.seen

    class Weigh(nn.Module):
        def __init__(self, of):
            super().__init__()
            self.words = of.words
            self.register_buffer("seen", of.seen)

        def forward(self, ids):
            return self.words(ids).softmax(-1) * self.seen, ids.sum()

    torch.manual_seed(1)
    add = Add().eval()
    weigh = Weigh(add).eval()
    given = (torch.arange(5),)
    rows = ({0: torch.export.Dim("rows", min=2, max=40)},)
    methods = {"add": add, "weigh": weigh}
    made = {
        name: torch.export.export(method, given, dynamic_shapes=rows)
        for name, method in methods.items()
    }
    torch_tenon.export(made, path=sys.argv[1])
    found = {}
    with torch.no_grad():
        for turn in range(24):
            if turn % 9 == 8:
                add.seen.zero_()
            ids = (torch.arange(6 + turn // 12) * turn) % 9
            results = methods["weigh" if turn % 3 == 1 else "add"](ids)
            found[f"{turn}_ids"] = ids
            found |= {f"{turn}_{k}": x.clone() for k, x in enumerate(results)}
    np.savez(sys.argv[2], **{name: x.numpy() for name, x in found.items()})
"""
RUN = """
    import sys
    import numpy as np
    import torch_tenon

    program, found = torch_tenon.load(sys.argv[1], commit=sys.argv[3]), np.load(sys.argv[2])
    for turn in range(24):
        if turn % 9 == 8:
            try:
                program.add(found[f"{turn}_ids"] + 100)
            except (ValueError, RuntimeError) as error:
                assert "index out of range" in str(error), error
            else:
                raise AssertionError("an index beyond the table is an error")
            program.reset()
        results = program.methods["weigh" if turn % 3 == 1 else "add"](found[f"{turn}_ids"])
        for k, x in enumerate(results):
            np.testing.assert_allclose(x, found[f"{turn}_{k}"], rtol=1e-4, atol=1e-5)
    print(program.report()["replays"])
"""


def test_replays_give_what_the_model_gives(tmp_path: Path) -> None:
    file, found = str(tmp_path / "model.tenon"), str(tmp_path / "found.npz")
    output(EXPORT, file, found, TENON_TARGET="opencl")
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    for way, commit, replays in (
        ("auto", "adaptive", 22),  # of 26 runs, by two methods with two sizes each
        ("buffer", "adaptive", 22),
        ("kernels", "adaptive", 22),
        ("off", "adaptive", 0),
        ("auto", "each", 0),
    ):
        said = output(RUN, file, found, commit, TENON_OPENCL_REPLAY=way, **environment)
        assert said == str(replays), (way, commit)
