"""How PyTorch's compiler finds this one: what has to be in place before Dynamo traces anything.

Dynamo and Inductor take seconds to import, so nothing here imports them: what is for Dynamo waits
until somebody else loads it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.fx import GraphModule

from torch_tenon import frameworks
from torch_tenon.api import accelerator
from torch_tenon.frontends.after_import import after_import
from torch_tenon.frontends.safetensors import admit_to_safetensors


def install() -> None:
    """Plain `torch.compile` reaches the compiler, and modules that list devices, PyTorch's and
    those of other libraries, list this one."""
    _take_over_from_inductor()
    after_import(AFTER_IMPORT | frameworks.entries())


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


def admit_to_flex_attention(module: ModuleType) -> None:
    """Lets flex_attention take tensors of the device: it has a list of those that it knows."""
    validate = module._validate_device

    def validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "tenon":
            validate(query, key, value)

    # Dynamo traces what is in PyTorch's files, and nothing of this package.
    code = validate_device.__code__
    validate_device.__code__ = code.replace(co_filename=validate.__code__.co_filename)
    module._validate_device = validate_device  # type: ignore[attr-defined]


def skip_own_frames(module: ModuleType) -> None:
    """Keeps Dynamo from compiling this package: what an op is made of runs as it is written."""
    module.add("torch_tenon")


def refuse_packages(module: ModuleType) -> None:
    """Says what to do instead of compiling ahead of time by AOTInductor, which has no code
    generator for the device."""
    compile_ahead = module.compile_fx_aot

    @functools.wraps(compile_ahead)
    def compile_fx_aot(model: GraphModule, inputs: Sequence[Any], *args: Any, **named: Any) -> Any:
        held = (*inputs, *model.parameters(), *model.buffers())
        if on_device(model, held):
            raise NotImplementedError(
                "AOTInductor makes no packages for the device tenon. Save the exported program "
                "with torch.export.save, and run torch.compile(torch.export.load(path).module()): "
                "kernels that were compiled before are found in the cache"
            )
        return compile_ahead(model, inputs, *args, **named)

    module.compile_fx_aot = compile_fx_aot  # type: ignore[attr-defined]


_layouts: list[torch.library.Library] = []


def tell_layouts(_: ModuleType) -> None:
    """Tells a trace what lies where of ops that draw, and of which PyTorch does not: it would run
    them, and the generator moved on with the first call of a compiled function."""
    library = torch.library.Library("aten", "IMPL")
    for name in ("binomial", "_sample_dirichlet"):
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            library.impl(name, _like_the_first, "Meta")
    _layouts.append(library)  # for good


def _like_the_first(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device="meta")


AFTER_IMPORT: dict[str, Callable[[ModuleType], None]] = {
    "safetensors": admit_to_safetensors,
    "safetensors.torch": admit_to_safetensors,
    "torch._dynamo.device_interface": register_interface,
    "torch._dynamo.trace_rules": skip_own_frames,
    "torch._inductor.compile_fx": refuse_packages,
    "torch._subclasses.fake_tensor": tell_layouts,
    "torch.nn.attention.flex_attention": admit_to_flex_attention,
}
