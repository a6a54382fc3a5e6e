"""Weights in a safetensors file beside the program, which other programs may share."""

from __future__ import annotations

import json
import struct
from collections import Counter
from pathlib import Path

import torch

from torch_tenon.exporting.errors import ExportError
from torch_tenon.exporting.weights import Shared


def weights_apart(shared: Shared, path: Path) -> tuple[int, int]:
    """Gives each weight its place in the file at `path`: where its data begins, and its bytes.

    The file is written, or, where it is there, has all the weights already. Raises ExportError
    where it is there and has not, ImportError without safetensors, OSError.
    """
    from safetensors import safe_open
    from safetensors.torch import save_file

    tensors = {w.name: w.tensor for w in shared.weights}
    if path.exists():
        with safe_open(path, framework="pt") as kept:
            names = set(kept.keys())
            for name, tensor in tensors.items():
                if name not in names or not _same(kept.get_tensor(name), tensor):
                    raise ExportError(
                        f"{path} is there, and its {name!r} is not the model's: remove it, or name "
                        "another file for the weights"
                    )
    else:
        # The library refuses tensors of one storage.
        storages = Counter(_storage(t) for t in tensors.values())
        apart = {k: t.clone() if storages[_storage(t)] > 1 else t for k, t in tensors.items()}
        try:
            save_file(apart, path)
        except KeyError as error:  # a dtype that it has no name for
            raise ExportError(
                f"a safetensors file has no weights of {error}: keep them inside the program"
            ) from error
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        entries = json.loads(file.read(length))
    for weight in shared.weights:
        weight.offset = entries[weight.name]["data_offsets"][0]
    begin = 8 + length
    return begin, path.stat().st_size - begin


def _storage(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _same(x: torch.Tensor, y: torch.Tensor) -> bool:
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    return torch.equal(_bits(x), _bits(y))


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)
