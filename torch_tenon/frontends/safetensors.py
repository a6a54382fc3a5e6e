"""`device="tenon"` in safetensors, which has a list of the devices that it knows."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from torch_tenon.api.indices import index_of


def admit_to_safetensors(module: ModuleType) -> None:
    """Lets `safe_open` and what is built on it, `safetensors.torch.load_file` and `load_model`,
    take the device by its name.

    safetensors takes a device's index for any accelerator of PyTorch's, and reads as it does then.
    """
    opens = getattr(module, "safe_open", None)
    if opens is None or hasattr(opens, "__wrapped__"):
        return  # safetensors.torch has it from safetensors, and may have it already

    @functools.wraps(opens, updated=())
    def safe_open(
        filename: Any, framework: str, device: Any = "cpu", *args: Any, **kwargs: Any
    ) -> Any:
        if str(device).partition(":")[0] == "tenon":
            device = index_of(device)
        return opens(filename, framework, device, *args, **kwargs)

    module.safe_open = safe_open  # type: ignore[attr-defined]
