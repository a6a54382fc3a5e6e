"""An op that a release of PyTorch no longer has is left out, and a misspelt one is an error."""

import pytest
import torch

from torch_tenon.ops.lowerings.library import enter_library
from torch_tenon.pytorch.versions import is_removed


def test_only_what_is_not_there_is_removed() -> None:
    assert is_removed("aten::cholesky") is not hasattr(torch.ops.aten, "cholesky")
    assert not is_removed("aten::add")
    enter_library(frozenset({"aten::cholesky"}))


def test_a_misspelt_op_is_an_error() -> None:
    with pytest.raises(AttributeError, match="choleskyy"):
        enter_library(frozenset({"aten::choleskyy"}))
