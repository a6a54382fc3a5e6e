"""Lightning: `accelerator="tenon"`, and "auto" where the device is the only one.

Its packages come under two names each, and what is for training and what is for Fabric have
accelerators and connectors of their own; each is entered by itself.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from torch_tenon.api import accelerator, memory
from torch_tenon.api.indices import index_of
from torch_tenon.frameworks.choice import enter_in_list, is_only_accelerator


def register_accelerator(module: ModuleType) -> None:
    """Registers the accelerator `tenon`; `module` is that of Lightning's accelerators."""
    registry = getattr(module, "AcceleratorRegistry", None)
    if registry is None:
        registry = module.ACCELERATOR_REGISTRY
    registry.register("tenon", _accelerator(module.Accelerator), description="torch-tenon")


def enter_trainer(module: ModuleType) -> None:
    """`Trainer` computes, and casts in mixed precision, on the device that it was given."""
    _enter_connector(module._AcceleratorConnector)


def enter_fabric(module: ModuleType) -> None:
    """`Fabric` computes, and casts in mixed precision, on the device that it was given."""
    _enter_connector(module._Connector)


def _enter_connector(connector: Any) -> None:
    # Without this a device that is no list's is computed on by the CPU, and cast for CUDA.
    enter_in_list(connector._choose_strategy, ("cuda", "gpu", "mps"))
    enter_in_list(connector._check_and_init_precision, ("cpu", "mps"))
    choose = connector._choose_auto_accelerator

    @functools.wraps(choose)
    def choose_auto_accelerator() -> Any:
        chosen = choose()
        return "tenon" if chosen == "cpu" and is_only_accelerator() else chosen

    connector._choose_auto_accelerator = staticmethod(choose_auto_accelerator)


def _accelerator(base: type) -> type:
    class TenonAccelerator(base):
        """What Lightning asks of a device."""

        def setup_device(self, device: torch.device) -> None:
            """Makes the device this thread's current one. Raises ValueError for another's."""
            if device.type != "tenon":
                raise ValueError(
                    f"the accelerator is tenon, and the strategy computes on {device}: give the "
                    f"strategy the device, as in SingleDeviceStrategy(device='tenon:0')"
                )
            accelerator.set_device(device)

        def teardown(self) -> None:
            """Gives back the memory that nothing holds."""
            memory.empty_cache()

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            """The allocator's counts of a device."""
            return dict(memory.memory_stats(device))

        @staticmethod
        def parse_devices(devices: int | str | list[int]) -> list[int]:
            """The devices' numbers: of the first N, of those in a list or text, of all for -1."""
            if isinstance(devices, str):
                numbers = [int(part) for part in devices.split(",") if part.strip()]
                devices = numbers if "," in devices else numbers[0]
            if isinstance(devices, int):
                count = accelerator.device_count() if devices == -1 else devices
                devices = list(range(count))
            return [index_of(number) for number in devices]

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            """The devices by their numbers."""
            return [torch.device("tenon", number) for number in devices]

        @staticmethod
        def auto_device_count() -> int:
            """All that there are."""
            return accelerator.device_count()

        @staticmethod
        def is_available() -> bool:
            """Whether there is a device."""
            return accelerator.is_available()

        @staticmethod
        def name() -> str:
            """What to ask for."""
            return "tenon"

    return TenonAccelerator
