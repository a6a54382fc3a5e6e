"""Loads the device where the extension is one for this PyTorch, and else says what to do.

The extension is built against one version of PyTorch's C++ classes and one of Python; with another
it may load and then crash. So what it was built for, which setup.py writes beside it, is compared
before anything is loaded.
"""

import importlib
import json
import platform
from pathlib import Path

BUILT_FOR = Path(__file__).with_name("built_for.json")
NOT_LOADED = "torch-tenon is not loaded: "  # how the text of such an error begins
# Without `--no-deps` pip would put the pinned PyTorch in the place of the one that is there.
BUILD = (
    "`pip install --no-build-isolation --no-deps .` in torch-tenon's source tree builds it for "
    "this one"
)
# What of the package the device cannot do without.
_PARTS = ("torch_tenon._C", "torch_tenon.api.accelerator", "torch_tenon.ops.register")


def built_for() -> str | None:
    """The version of PyTorch that the extension is built against; None where it is not built, or
    what it was built for cannot be read."""
    try:
        record = json.loads(BUILT_FOR.read_bytes())
        return record["torch"] if isinstance(record, dict) else None
    except (FileNotFoundError, ValueError, KeyError):
        return None


def mismatch(torch_version: str) -> str | None:
    """Why the extension is not for that version of PyTorch or this Python, in one line; None where
    it is, and where nothing says what it was built for.
    """
    try:
        record = json.loads(BUILT_FOR.read_bytes())
        torch_wanted, python_wanted = record["torch"], record["python"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        return _line(f"{BUILT_FOR} is damaged ({type(error).__name__}: {error}); {BUILD}")
    python = ".".join(platform.python_version_tuple()[:2])
    # What follows a plus names a build for some accelerator; the classes are the same.
    same = torch_version.partition("+")[0] == torch_wanted.partition("+")[0]
    if same and python == python_wanted:
        return None
    remedy = BUILD if same else f"`pip install torch=={torch_wanted.partition('+')[0]}`, or {BUILD}"
    return _line(
        f"it was built for PyTorch {torch_wanted} and Python {python_wanted}, and this is PyTorch "
        f"{torch_version} and Python {python}; {remedy}"
    )


def register() -> None:
    """Registers the device. Once; again is nothing.

    Raises ImportError, of one line, where the extension is for another PyTorch or Python or does
    not load; and what a wrong setting, or a target that cannot be made, raises.
    """
    import torch

    problem = mismatch(torch.__version__)
    if problem is not None:
        raise ImportError(problem)
    try:
        for part in _PARTS:
            importlib.import_module(part)
        importlib.import_module("torch_tenon.ops.manifest").load()
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise ImportError(_line(f"{reason}; {BUILD}, `tenon doctor` looks further")) from error
    from torch_tenon.register import register as register_device

    register_device()


def _line(reason: str) -> str:
    return NOT_LOADED + reason
