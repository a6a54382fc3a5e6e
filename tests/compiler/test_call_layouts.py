"""What calls of PyTorch's kernels get: tensors that lie as they do in eager code.

For images by channel these kernels take a fraction of the time, and so do the loops that read
their results.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tenon.frontends.graph import build
from torch_tenon.ir.values import Stored
from torch_tenon.ops.compositions import decompositions


def test_a_call_gets_images_by_channel() -> None:
    for format in (torch.channels_last, torch.contiguous_format):
        x = torch.randn(2, 8, 6, 5).to(memory_format=format)
        trace = make_fx(
            lambda x: [F.interpolate(x.relu(), scale_factor=2)],
            decompositions(),
            tracing_mode="fake",
        )
        program = build(trace(x)).program
        (call,) = (n for n in program.nodes if "upsample" in n.name)
        given = call.arguments[0]
        assert isinstance(given, Stored) and given.layout.strides == x.stride()
