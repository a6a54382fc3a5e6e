"""What a test needs of the target; on one that lacks it, the test is skipped."""

import pytest

import torch_tenon

#: An address of the device's memory is one that the host can use.
host_memory = pytest.mark.skipif(
    not torch_tenon.target().host_memory, reason="the host cannot reach the target's memory"
)

#: Windows run by plans.
plans = pytest.mark.skipif(
    torch_tenon.target().backend is None, reason="the target has no backend, and so no plans"
)
