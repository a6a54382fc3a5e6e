"""How PyTorch's compiler finds this one: what has to be in place before Dynamo traces anything.

Dynamo and Inductor take seconds to import, so nothing here imports them: what is for Dynamo waits
until somebody else loads it.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch.fx import GraphModule

DEVICE_INTERFACES = "torch._dynamo.device_interface"


def install() -> None:
    """Plain `torch.compile` reaches the compiler, and Dynamo knows the device's streams."""
    _take_over_from_inductor()
    loaded = sys.modules.get(DEVICE_INTERFACES)
    if loaded is None:
        sys.meta_path.insert(0, _AfterImport())
    else:
        register_interface(loaded)


def on_device(module: GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether Dynamo's graph computes on a tenon device: with its inputs, or with what it makes."""
    values = [*inputs, *(n.meta.get("example_value") for n in module.graph.nodes)]
    return any(isinstance(v, torch.Tensor) and v.device.type == "tenon" for v in values)


def _take_over_from_inductor() -> None:
    # Inductor's registry takes code generators for a device, not compilers, and a graph has been
    # through Inductor's passes by then. So the graph is taken at the door.
    wrapper: Any = torch._TorchCompileInductorWrapper
    inductor = wrapper.__call__

    @functools.wraps(inductor)
    def compile_graph(self: Any, module: GraphModule, inputs: Sequence[Any], **patches: Any) -> Any:
        if not on_device(module, inputs):
            return inductor(self, module, inputs, **patches)
        from torch_tenon.frontends.dynamo import tenon_backend

        return tenon_backend(module, inputs)

    wrapper.__call__ = compile_graph


def register_interface(module: ModuleType) -> None:
    """Enters the device in Dynamo's table of devices; `module` is that of the table."""
    from torch_tenon import accelerator

    class TenonInterface(module.DeviceInterface):  # type: ignore[name-defined]
        """What Dynamo asks of a device."""

        device = accelerator.device
        Event = torch.Event
        Stream = torch.Stream

        class Worker:
            """For processes that compile; kernels are compiled in this one."""

            set_device = staticmethod(accelerator.set_device)
            current_device = staticmethod(accelerator.current_device)
            get_device_properties = staticmethod(accelerator.get_device_properties)

        current_device = staticmethod(accelerator.current_device)
        set_device = staticmethod(accelerator.set_device)
        exchange_device = staticmethod(accelerator._exchange_device)
        maybe_exchange_device = staticmethod(accelerator._maybe_exchange_device)
        device_count = staticmethod(accelerator.device_count)
        is_available = staticmethod(accelerator.is_available)
        stream = staticmethod(accelerator.stream)
        current_stream = staticmethod(accelerator.current_stream)
        set_stream = staticmethod(accelerator.set_stream)
        synchronize = staticmethod(accelerator.synchronize)
        memory_allocated = staticmethod(accelerator.memory_allocated)
        is_bf16_supported = staticmethod(accelerator.is_bf16_supported)

        @staticmethod
        def get_raw_stream(device_idx: int) -> int:
            """A number for the stream that is current on a device."""
            return int(accelerator.current_stream(device_idx).stream_id)

    for name in ("tenon", *(f"tenon:{i}" for i in range(accelerator.device_count()))):
        module.register_interface_for_device(name, TenonInterface)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Registers the device's interface right after Dynamo's table of them has been imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module as it is, but for what happens after its body ran."""
        if fullname != DEVICE_INTERFACES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                register_interface(module)

            loader.exec_module = execute_and_register
        return spec
