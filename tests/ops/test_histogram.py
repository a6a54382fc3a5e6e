"""Histograms of whole numbers, which PyTorch's CPU has not."""

import pytest
import torch


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("limits", [(0, 6), (2, 5), (0, 0)])
def test_whole_numbers(dtype: torch.dtype, limits: tuple[int, int], compile: bool) -> None:
    torch._dynamo.reset()
    histc = torch.compile(torch.histc, backend="tenon") if compile else torch.histc
    x = torch.randint(0, 7, (300,)).to(dtype)
    least, most = limits if limits[1] else (int(x.min()), int(x.max()))
    inside = x[(x >= least) & (x <= most)].long()
    want = torch.bincount(inside - least, minlength=most - least + 1)
    for _ in range(3):
        got = histc(x.to("tenon"), most - least + 1, *limits)
        assert got.dtype == dtype
        torch.testing.assert_close(got.cpu().long(), want)
