"""Random numbers of the device: seeds, and the state of each device's generator."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torch_tenon import _C
from torch_tenon.api.indices import Device, index_of

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def _generator(device: Device = None) -> torch.Generator:
    return _C.default_generator(index_of(device))


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    _generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds every device's generator; `torch.manual_seed` does so too."""
    for index in range(_C.device_count()):
        _generator(index).manual_seed(int(seed))


def seed() -> int:
    """Seeds the current device's generator from the system, and returns the seed."""
    return _generator().seed()


def seed_all() -> None:
    """Seeds every device's generator with one random number."""
    value = _generator(0).seed()
    manual_seed_all(value)


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _generator().initial_seed()


def get_rng_state(device: Device = "tenon") -> torch.Tensor:
    """The state of a device's generator: 16 bytes on the host, seed and offset."""
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = "tenon") -> None:
    """Sets what `get_rng_state` returned."""
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators."""
    return [get_rng_state(index) for index in range(_C.device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets what `get_rng_state_all` returned."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
