"""What a test needs of the target; on one that lacks it, the test is skipped."""

import functools

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

#: The core opens targets in libraries of their own.
library_targets = pytest.mark.skipif(
    not hasattr(torch_tenon._C, "open_target_library"), reason="the core opens no libraries"
)


@functools.cache
def opencl_problem() -> str:
    """Why the target `opencl` does not work here; empty where it does."""
    from torch_tenon.targets.opencl.target import devices
    from torch_tenon.targets.target import TargetError

    try:
        devices()
    except TargetError as error:
        return str(error)
    return ""


#: A driver of OpenCL's.
opencl = pytest.mark.skipif(bool(opencl_problem()), reason=opencl_problem() or "there is one")
