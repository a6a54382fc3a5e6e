"""Loop trees as they are lowered give what PyTorch gives, before anybody has rewritten them."""

import os

import pytest
from fresh_process import TESTS, output, python

TREE = f"{TESTS / 'targets' / 'tree.py'}:TreeTarget"


def test_eager_code_runs_by_trees() -> None:
    code = """
        import torch
        from torch_tenon.builder.counts import plan_counts
        torch.manual_seed(0)
        x, w = torch.randn(6, 5), torch.randn(5, 4)
        for _ in range(3):
            y = (x.to("tenon") @ w.to("tenon")).softmax(-1).cumsum(0)
            torch.testing.assert_close(y.cpu(), (x @ w).softmax(-1).cumsum(0))
        index = torch.tensor([7], device="tenon")
        for _ in range(3):
            try:
                print(torch.index_select(x.to("tenon").exp(), 0, index).cpu())
            except (IndexError, RuntimeError) as error:
                print(type(error).__name__, "out of range" in str(error))
        u = torch.rand(50, device="tenon").cpu()
        assert 0 <= u.min() < u.max() < 1
        assert plan_counts()["hits"] > 0, plan_counts()
    """
    found = output(code, TENON_TARGET=TREE, TENON_EXECUTE="compiled", TENON_BUILDER="thread")
    assert found == "\n".join(["IndexError True"] * 3)


@pytest.mark.slow
def test_ops_of_the_database() -> None:
    """Some; `TENON_TARGET=... python -m tests.compiler.op_db` takes all."""
    ops = "nn.functional.layer_norm", "scatter_add", "sort", "var"
    command = ["--samples", "2", "--dtype", "float32", "int64", "--only", *ops]
    env = {**os.environ, "TENON_TARGET": TREE}
    done = python("-m", "tests.compiler.op_db", *command, env=env, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(100.00 %)" in done.stdout
