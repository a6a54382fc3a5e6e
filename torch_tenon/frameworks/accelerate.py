"""accelerate: the device that it chooses, mixed precision, memory for device maps, checkpoints."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torch_tenon.api import accelerator, memory, random
from torch_tenon.api.indices import index_of
from torch_tenon.device import target
from torch_tenon.frameworks.choice import device_instead_of, enter_in_list, is_only_accelerator

# The devices whose float16 accelerate scales gradients for.
_FLOAT16 = ("xpu", "cuda", "npu", "xla", "mlu", "musa", "hpu", "sdaa", "mps")


def enter_state(module: ModuleType) -> None:
    """`Accelerator()` and `PartialState()` choose the device where accelerate knows none; ranks
    that a launcher has started are a group, as they are on the CPU."""
    state = module.PartialState
    default, prepare = state.default_device.fget, state._prepare_backend

    @functools.wraps(default)
    def default_device(self: Any) -> torch.device:
        return device_instead_of(default(self))

    @functools.wraps(prepare)
    def prepare_backend(
        self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None
    ) -> tuple[str | None, Any]:
        found = prepare(self, cpu, sagemaker_dp, backend)
        launched = int(os.environ.get("LOCAL_RANK", -1)) != -1
        if cpu or found[0] is not None or not launched or not is_only_accelerator():
            return found
        # accelerate has a kind of group for each device that it knows. That of the CPU names no
        # backend of a vendor's; the device is one that was chosen before the group is made.
        if self.device is None:
            index = int(os.environ["LOCAL_RANK"]) % accelerator.device_count()
            self.device = torch.device("tenon", index)
            accelerator.set_device(index)
        return prepare(self, True, sagemaker_dp, backend)

    state.default_device = property(default_device)
    state._prepare_backend = prepare_backend


def enter_mixed_precision(module: ModuleType) -> None:
    """`mixed_precision="fp16"` works on the device, with a gradient scaler for it."""
    enter_in_list(module.Accelerator.__init__, _FLOAT16)
    scaler_for = module.get_grad_scaler

    @functools.wraps(scaler_for)
    def get_grad_scaler(distributed_type: Any = None, **kwargs: Any) -> Any:
        sharded = distributed_type == module.DistributedType.FSDP
        if sharded or module.PartialState().device.type != "tenon":
            return scaler_for(distributed_type, **kwargs)
        return torch.amp.GradScaler("tenon", **kwargs)

    module.get_grad_scaler = get_grad_scaler  # type: ignore[attr-defined]


def enter_memory(module: ModuleType) -> None:
    """`device_map="auto"` and its like know the device's memory."""
    find, convert = module.get_max_memory, module.convert_file_size_to_int

    @functools.wraps(find)
    def get_max_memory(max_memory: dict[int | str, Any] | None = None) -> dict[int | str, Any]:
        if not is_only_accelerator():
            return find(max_memory)
        if max_memory is None:
            return _free_memory(find(None))
        # accelerate says of each number that there is no such device: it looks for CUDA's.
        devices = sorted(key for key in max_memory if isinstance(key, int))
        for index in devices:
            index_of(index)
        given = {index: max_memory[index] for index in devices}
        sizes = {i: convert(s) if isinstance(s, str) else s for i, s in given.items()}
        return sizes | find({key: s for key, s in max_memory.items() if key not in given})

    module.get_max_memory = get_max_memory  # type: ignore[attr-defined]


def _free_memory(others: dict[int | str, Any]) -> dict[int | str, Any]:
    """The bytes that are free, by device."""
    count = accelerator.device_count()
    free: dict[int | str, Any] = {index: memory.mem_get_info(index)[0] for index in range(count)}
    if target().host_memory:
        # The host's memory, and what does not fit there fits nowhere.
        share = others.pop("cpu") // count
        free = {index: min(size, share) for index, size in free.items()}
    return {**free, **others}


def enter_checkpoints(module: ModuleType) -> None:
    """`save_state` and `load_state` keep the device's random numbers with the others."""
    save, load = module.save_accelerator_state, module.load_accelerator_state

    @functools.wraps(save)
    def save_accelerator_state(output_dir: Any, *args: Any, **kwargs: Any) -> Any:
        saved = save(output_dir, *args, **kwargs)
        random_state_to(output_dir)
        return saved

    @functools.wraps(load)
    def load_accelerator_state(input_dir: Any, *args: Any, **kwargs: Any) -> Any:
        loaded = load(input_dir, *args, **kwargs)
        random_state_from(input_dir)
        return loaded

    module.save_accelerator_state = save_accelerator_state  # type: ignore[attr-defined]
    module.load_accelerator_state = load_accelerator_state  # type: ignore[attr-defined]


def random_state_to(folder: Any) -> None:
    """Writes the state of the devices' random numbers into a checkpoint's folder, by rank."""
    torch.save(random.get_rng_state_all(), _random_state(folder))


def random_state_from(folder: Any) -> None:
    """Sets the devices' random numbers as `random_state_to` found them; nothing where there is no
    such file, as in a checkpoint of another device."""
    path = _random_state(folder)
    if path.is_file():
        states = torch.load(path, weights_only=True)
        for index, state in enumerate(states[: accelerator.device_count()]):
            random.set_rng_state(state, index)


def _random_state(folder: Any) -> Path:
    rank = int(os.environ.get("RANK", 0))
    return Path(folder) / f"random_states_tenon_{rank}.pt"
