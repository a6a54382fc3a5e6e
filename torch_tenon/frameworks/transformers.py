"""transformers: the device of `Trainer` and of `pipeline`."""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any

import torch

from torch_tenon.api import accelerator
from torch_tenon.frameworks.accelerate import random_state_from, random_state_to
from torch_tenon.frameworks.choice import is_only_accelerator


def enter_training_arguments(module: ModuleType) -> None:
    """`Trainer` trains where accelerate does, and in bfloat16 if it is asked to."""
    # A property that is computed once; its function is what computes it.
    once = module.TrainingArguments.__dict__["_setup_devices"]
    set_up = once.func

    @functools.wraps(set_up)
    def setup_devices(self: Any) -> torch.device:
        device = set_up(self)
        state = getattr(self, "distributed_state", None)
        if device.type != "cpu" or state is None or state.device.type != "tenon":
            return device
        self._n_gpu = 1  # as with any one device; what is larger is for DataParallel
        return state.device

    once.func = setup_devices
    bfloat16 = module.is_torch_bf16_gpu_available
    module.is_torch_bf16_gpu_available = lambda: bfloat16() or accelerator.is_available()  # type: ignore[attr-defined]


def enter_checkpoints(module: ModuleType) -> None:
    """`Trainer`'s checkpoints keep the device's random numbers with the others."""
    trainer = module.Trainer
    save, load = trainer._save_rng_state, trainer._load_rng_state

    @functools.wraps(save)
    def save_rng_state(self: Any, output_dir: str) -> None:
        save(self, output_dir)
        random_state_to(output_dir)

    @functools.wraps(load)
    def load_rng_state(self: Any, checkpoint: str | None) -> None:
        load(self, checkpoint)
        if checkpoint is not None:
            random_state_from(checkpoint)

    trainer._save_rng_state = save_rng_state
    trainer._load_rng_state = load_rng_state


def enter_pipeline(module: ModuleType) -> None:
    """A pipeline without a device, and one with a device's number, is on the device."""
    make = module.Pipeline.__init__
    parameters = inspect.signature(make)
    if "device" not in parameters.parameters:
        raise LookupError("Pipeline() takes no device")

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = parameters.bind(self, *args, **kwargs)
        device = bound.arguments.get("device")
        placed = getattr(bound.arguments["model"], "hf_device_map", None)
        number = device if placed is None else next(iter(placed.values()))
        if number is None:
            number = 0
        ours = isinstance(number, int) and number >= 0 and is_only_accelerator()
        if ours and placed is None:
            bound.arguments["device"] = torch.device("tenon", number)
        make(*bound.args, **bound.kwargs)
        if ours and placed is not None:
            self.device = torch.device("tenon", number)

    module.Pipeline.__init__ = init
