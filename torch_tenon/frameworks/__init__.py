"""What people train with chooses the device: accelerate, transformers and Lightning.

Each of them has lists of the devices that it knows, and takes the CPU where it knows none. Where
a list ends in the CPU, the device is entered; what a library finds by itself, and what its user
names, stays as it is.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from types import ModuleType

#: What is done right after a module has been imported: where this package has it, and its name.
PLACES = {
    "accelerate.accelerator": ("accelerate", "enter_mixed_precision"),
    "accelerate.checkpointing": ("accelerate", "enter_checkpoints"),
    "accelerate.state": ("accelerate", "enter_state"),
    "accelerate.utils.modeling": ("accelerate", "enter_memory"),
    "transformers.pipelines.base": ("transformers", "enter_pipeline"),
    "transformers.trainer": ("transformers", "enter_checkpoints"),
    "transformers.training_args": ("transformers", "enter_training_arguments"),
    **{
        f"{package}.{module}": ("lightning", name)
        for package in ("lightning.pytorch", "pytorch_lightning")
        for module, name in (
            ("accelerators", "register_accelerator"),
            ("trainer.connectors.accelerator_connector", "enter_trainer"),
        )
    },
    **{
        f"{package}.{module}": ("lightning", name)
        for package in ("lightning.fabric", "lightning_fabric")
        for module, name in (
            ("accelerators", "register_accelerator"),
            ("connector", "enter_fabric"),
        )
    },
}


def entries() -> dict[str, Callable[[ModuleType], None]]:
    """By a module's name, what enters the device there; nothing is loaded until then."""
    return {name: functools.partial(_enter, *where) for name, where in PLACES.items()}


def _enter(file: str, name: str, module: ModuleType) -> None:
    entry = getattr(importlib.import_module(f"{__name__}.{file}"), name)
    try:
        entry(module)
    except (AttributeError, LookupError, TypeError) as error:
        # Another version of the library. It works as it does without the device.
        warnings.warn(
            f"torch-tenon does not know this version of {module.__name__.partition('.')[0]}, which "
            f"may choose the CPU by itself ({module.__name__}: {error}); name the device, or "
            f"install the version that docs/frameworks.md has",
            stacklevel=2,
        )
