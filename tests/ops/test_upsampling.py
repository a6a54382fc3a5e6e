"""Images made larger by plans, where scales do not fit the sizes of the results."""

from __future__ import annotations

import itertools

import needs
import pytest
import torch
from against_cpu import executing, same_on_both

pytestmark = needs.plans

aten = torch.ops.aten
SCALES = (None, 0.5, 0.1, 1.0, 2.0, 3.0, 1.7, -1.0, 0.0, 1e9)


@pytest.mark.parametrize("kind", ["upsample_nearest", "_upsample_nearest_exact"])
@pytest.mark.parametrize(
    ("dtype", "channels_last"),
    [(torch.float32, False), (torch.bfloat16, True)],
)
def test_the_nearest_element_is_one_of_the_image(
    kind: str, dtype: torch.dtype, channels_last: bool
) -> None:
    def compute(device: torch.device) -> list[torch.Tensor]:
        found = []
        for n, format in ((1, None), (2, torch.channels_last), (3, torch.channels_last_3d)):
            sizes = (7, 2, 5)[:n]
            x = torch.arange(4 * torch.Size(sizes).numel()).remainder(251).view(1, 4, *sizes)
            x = x.to(dtype)
            if channels_last and format:
                x = x.to(memory_format=format)
            there, op = x.to(device), getattr(aten, f"{kind}{n}d").default
            for made, scale in itertools.product(((7, 2, 5), (14, 4, 10), (5, 5, 9)), SCALES):
                found.append(op(there, made[:n], *[scale] * n))
        return found

    with executing("compiled"):
        for _ in range(2):  # the first call of an op runs at once
            same_on_both(compute)
