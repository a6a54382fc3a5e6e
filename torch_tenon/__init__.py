"""torch-tenon: a PyTorch device, `tenon`, whose hardware is described in one Python file.

`import torch` loads it, `x.to("tenon")` uses it. Importing this package loads PyTorch only when
something of it is asked for, so that the command line starts quickly.
"""

import gc
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_tenon.api.commit import commit
    from torch_tenon.device import target
    from torch_tenon.exporting.export import export
    from torch_tenon.ops.custom import custom_op
    from torch_tenon.ops.declarations import KernelSource
    from torch_tenon.ops.kernel_file import load_kernels
    from torch_tenon.reports.counting import counters, report, reset_counters
    from torch_tenon.reports.explaining import explain
    from torch_tenon.runtime.program import load
    from torch_tenon.targets.launch import launch
    from torch_tenon.targets.target import Target

__all__ = [
    "KernelSource",
    "Target",
    "commit",
    "counters",
    "custom_op",
    "explain",
    "export",
    "launch",
    "load",
    "load_kernels",
    "report",
    "reset_counters",
    "target",
]

# Where the public names are defined.
_HOMES = {
    "KernelSource": "torch_tenon.ops.declarations",
    "Target": "torch_tenon.targets.target",
    "commit": "torch_tenon.api.commit",
    "counters": "torch_tenon.reports.counting",
    "custom_op": "torch_tenon.ops.custom",
    "explain": "torch_tenon.reports.explaining",
    "export": "torch_tenon.exporting.export",
    "launch": "torch_tenon.targets.launch",
    "load": "torch_tenon.runtime.program",
    "load_kernels": "torch_tenon.ops.kernel_file",
    "report": "torch_tenon.reports.counting",
    "reset_counters": "torch_tenon.reports.counting",
    "target": "torch_tenon.device",
}
# Those that neither need PyTorch nor load it.
_APART = ("load",)


def _autoload() -> None:
    """Registers the device; `import torch` calls it (entry point `torch.backends`).

    Where the extension cannot be loaded, one line on standard error says why: a program that never
    asks for the device goes on. A wrong setting raises, since somebody asked for what it names.
    """
    from torch_tenon import loading

    try:
        loading.register()
    except ImportError as error:
        if not str(error).startswith(loading.NOT_LOADED):
            raise  # a target's own
        print(error, file=sys.stderr)
        if _imported_by_torch:
            # So that whoever imports this package next gets the error.
            sys.modules.pop(__name__, None)
        return
    # What PyTorch's import has made is there until the process ends, where the interpreter's last
    # collections would walk over all of it: a quarter of a second.
    gc.freeze()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'torch_tenon' has no attribute {name!r}")
    if name not in _APART:
        from torch_tenon import loading

        loading.register()
    return getattr(importlib.import_module(_HOMES[name]), name)


_torch = sys.modules.get("torch")
_imported_by_torch = getattr(getattr(_torch, "__spec__", None), "_initializing", False)

# While PyTorch itself is being imported it calls `_autoload` at its end. Whoever imported it before
# this was installed, or switched autoloading off, asks by importing this package.
if _torch is None:
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        _autoload()
elif not _imported_by_torch:
    from torch_tenon import loading

    loading.register()
