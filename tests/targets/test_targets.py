"""How a target is found by its name, and what the interface says of a method that it lacks."""

import pytest
from fresh_process import run

from torch_tenon import targets
from torch_tenon.targets.target import Target


def test_target_by_path_and_by_module(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch_tenon.targets.cpu import CpuTarget\n"
        "class Mine(CpuTarget):\n    name = 'mine'\n"
        "nothing = 3\n"
    )
    assert targets.load(f"{file}:Mine").name == "mine"
    assert targets.load("torch_tenon.targets.cpu:CpuTarget").name == "cpu"
    with pytest.raises(TypeError, match="not a Target"):
        targets.load(f"{file}:nothing")
    with pytest.raises(ValueError, match="has no Missing"):
        targets.load(f"{file}:Missing")
    with pytest.raises(ValueError, match="there is no file"):
        targets.load(f"{tmp_path}/none.py:Mine")
    with pytest.raises(ValueError, match="no such target; there are cpu"):
        targets.load("nowhere")


def test_interface_says_what_is_missing():
    with pytest.raises(NotImplementedError):
        Target().allocate(1, 0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("linked", "problem"),
    [
        (
            '"aten::add": kernel',
            "whose tensors have overloads: write one of aten::add.Scalar, aten",
        ),
        ('"aten::mmm": kernel', "which is no op; the nearest is aten::mm"),
        ('"aten::add.Tenosr": kernel', "which has no overload 'Tenosr': write one of aten::add"),
        ('"aten::add_.Tensor": kernel', "which writes its arguments: it follows from aten::add"),
        ('"mm": kernel', "which has no namespace: write aten::mm"),
        ('"aten::mm": 3', "with 3, which is no function"),
    ],
)
def test_a_library_kernel_of_no_op(linked, problem, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch_tenon.targets.cpu import CpuTarget\n"
        "def kernel(*given): return NotImplemented\n"
        f"class Mine(CpuTarget):\n    library = {{{linked}}}\n"
    )
    done = run("import torch", TENON_TARGET=f"{file}:Mine")
    assert done.returncode != 0
    assert f"its `library` has {linked.split(': ')[0]}, {problem}".replace('"', "'") in done.stderr
