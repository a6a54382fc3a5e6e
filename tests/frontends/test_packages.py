"""Programs that are compiled ahead of time."""

from pathlib import Path

import pytest
import torch
from against_cpu import assert_same


def test_what_to_do_instead_of_a_package(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    x = torch.randn(2, 4)
    want = model(x).detach()
    program = torch.export.export(model.to("tenon"), (x.to("tenon"),))
    with pytest.raises(NotImplementedError, match=r"torch\.export\.save"):
        torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "p.pt2"))
    torch.export.save(program, tmp_path / "saved.pt2")
    again = torch.compile(torch.export.load(tmp_path / "saved.pt2").module())
    with torch.no_grad():
        assert_same(again(x.to("tenon")), want, 1e-5, 1e-6)
