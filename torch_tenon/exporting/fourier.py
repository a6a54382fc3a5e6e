"""Fourier transforms for programs without PyTorch: a kernel transforms rows, and the functions of
torch.fft are composed of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

from torch_tenon.ops.kernel_file import load_kernels

aten = torch.ops.aten
MOST_PRIME = 127  # of a row's length, as fourier.c has it

# As an exported graph has them: PyTorch composes these of the three below.
_NAMES = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
_COMPOSED = (
    *(getattr(aten, f"fft_{name}").default for name in _NAMES),
    *(getattr(aten, f"fft_{name}{k}").default for name in _NAMES[:4] for k in "2n"),
)
FOURIER = (
    *(aten._fft_c2c.default, aten._fft_r2c.default, aten._fft_c2r.default, aten.stft.default),
    *_COMPOSED,
)


@functools.cache
def _transform() -> Callable[..., Tensor]:
    found = load_kernels(Path(__file__).with_name("fourier.yaml"))
    op: Callable[..., Tensor] = found["tenon::fourier"]
    return op


def compositions() -> dict[Any, Callable[..., Any]]:
    """How the transforms are composed, for a trace."""
    _transform()
    return {
        aten._fft_c2c.default: complex_to_complex,
        aten._fft_r2c.default: real_to_complex,
        aten._fft_c2r.default: complex_to_real,
        aten.stft.default: short_time,
        **{op: functools.partial(_as_pytorch, op) for op in _COMPOSED},
    }


def _as_pytorch(op: Any, *args: Any, **keywords: Any) -> Any:
    return op._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **keywords)


def complex_to_complex(x: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    """The transforms along some dimensions."""
    if x.dtype is not torch.complex64 or not _are_served(x, dim):
        return NotImplemented
    found = x
    for d in dim:
        pairs = torch.view_as_real(found.movedim(d, -1).resolve_conj().contiguous())
        found = torch.view_as_complex(_rows(pairs, forward)).movedim(-1, d)
    return _scaled(found, [x.shape[d] for d in dim], normalization)


def real_to_complex(x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    """Those of real numbers; of the last of the dimensions one half has all there is to know."""
    if x.dtype is not torch.float32 or not _are_served(x, dim):
        return NotImplemented
    last = x.movedim(dim[-1], -1)
    spectrum = torch.view_as_complex(_rows(torch.stack([last, torch.zeros_like(last)], -1), True))
    if onesided:
        spectrum = spectrum.narrow(-1, 0, last.shape[-1] // 2 + 1)
    found = spectrum.movedim(-1, dim[-1])
    if dim[:-1]:
        found = complex_to_complex(found, dim[:-1], 0, True)
    return _scaled(found, [x.shape[d] for d in dim], normalization)


def complex_to_real(x: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> Any:
    """The inverse of that, of as many numbers as are said."""
    is_served = x.dtype is torch.complex64 and _are_served(x, dim[:-1])
    if not is_served or not _is_served(last_dim_size):
        return NotImplemented
    found = complex_to_complex(x, dim[:-1], 0, False) if dim[:-1] else x
    half = torch.view_as_real(found.movedim(dim[-1], -1).resolve_conj())
    mirrored = half.narrow(-2, 1, (last_dim_size - 1) // 2).flip(-2)
    mirrored = torch.stack([mirrored[..., 0], -mirrored[..., 1]], -1)
    half = half.narrow(-2, 0, last_dim_size // 2 + 1)
    real = _rows(torch.cat([half, mirrored], -2), False)[..., 0].movedim(-1, dim[-1])
    return _scaled(real, [*(x.shape[d] for d in dim[:-1]), last_dim_size], normalization)


def short_time(
    x: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    """The transforms of overlapping stretches of x (L) or (N, L), each times a window: (N, n_fft
    or a half of it and one, stretches)."""
    are_real = all(t is None or t.dtype is torch.float32 for t in (x, window))
    if not are_real or align_to_window or not _is_served(n_fft) or x.dim() not in (1, 2):
        return NotImplemented
    length = n_fft if win_length is None else win_length
    before = (n_fft - length) // 2
    frames = x.unfold(-1, n_fft, n_fft // 4 if hop_length is None else hop_length)
    if window is None and length < n_fft:
        window = x.new_ones(length)
    if window is not None:
        frames = frames * torch.nn.functional.pad(window, (before, n_fft - length - before))
    spectrum = real_to_complex(frames, [frames.dim() - 1], 0, onesided is not False)
    found = spectrum.transpose(-1, -2)
    found = found * n_fft**-0.5 if normalized else found
    return found if return_complex else torch.view_as_real(found)


def _are_served(x: Tensor, dims: Sequence[int]) -> bool:
    return all(_is_served(x.shape[d]) for d in dims)


def _is_served(n: Any) -> bool:
    """Whether the kernel is for a length: it is known, and a product of small primes."""
    if not isinstance(n, int) or n < 1:
        return False
    for p in range(2, MOST_PRIME + 1):
        while n % p == 0:
            n //= p
    return n == 1


def _rows(pairs: Tensor, forward: bool) -> Tensor:
    """The transforms of pairs (..., n, 2)."""
    n = pairs.shape[-2]
    angles = torch.arange(n, dtype=torch.float64, device=pairs.device)
    angles = angles * ((-2 if forward else 2) * math.pi / n)
    turns = torch.stack([angles.cos(), angles.sin()], -1).float()
    rows = pairs.contiguous().view(math.prod(pairs.shape[:-2]), n, 2)
    return _transform()(rows, turns).view(pairs.shape)


def _scaled(x: Tensor, sizes: Sequence[int], normalization: int) -> Tensor:
    """By one of PyTorch's normalizations: none, the root of the length, or the length."""
    count = math.prod(sizes)
    return x if normalization == 0 else x * (count**-0.5 if normalization == 1 else 1 / count)
