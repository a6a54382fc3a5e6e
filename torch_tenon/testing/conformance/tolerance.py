"""How far the device's values may be from the CPU's."""

from __future__ import annotations

from typing import Any

import torch
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.opinfo.core import DecorateInfo

# PyTorch's own comparisons of the kind made here: one device with another, one layout of the
# inputs with another, one variant with another. Overrides for others (against NumPy, against
# double precision) are far wider than two runs of one op need.
_TESTS = {
    "test_compare_cpu",
    "test_noncontiguous_samples",
    "test_variant_consistency_eager",
    "test_out",
    "test_forward",
    "test_cpu_gpu_parity",
}


def tolerance(info: Any, dtype: torch.dtype) -> tuple[float, float]:
    """The least (atol, rtol) to allow; where they are lower, `assertEqual`'s for the dtype hold.

    Taken from the overrides that `info`, an entry of one of the databases, has for PyTorch's own
    tests that compare one device, layout or variant with another.
    """
    atol = rtol = 0.0
    for decoration in info.decorators:
        if not isinstance(decoration, DecorateInfo):
            continue
        if decoration.cls_name is not None and decoration.test_name not in _TESTS:
            continue
        for decorator in decoration.decorators:
            if isinstance(decorator, toleranceOverride) and dtype in decorator.d:
                atol = max(atol, decorator.d[dtype].atol)
                rtol = max(rtol, decorator.d[dtype].rtol)
    return atol, rtol
