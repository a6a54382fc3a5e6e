"""TorchCTS: where it is, and what has to change for a fair comparison."""

import functools
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BARS = {"auto": 0.9995, "compiled": 0.999}
SKIPPED_COUNTS = True

# The newest release of PyTorch that the suite has contracts for.
_NEWEST_CONTRACTS = "2.12.1"
# The suite compares nothing on the CPU in these places: there a wrong reference of its own goes
# unseen, and would count as a failure of the device.
_EXEMPTION = re.compile(r'(?:torch\.device\(device\)\.type|\bdevice) (==|!=) "cpu"')
_EXEMPT_FOLDERS = ("autograd", "generated", "operators", "opinfo", "workloads")
_EXEMPTIONS = 41
_LIFTED = "exemptions_lifted"


def folder() -> Path:
    """The suite's folder. Raises `ModuleNotFoundError` where it is not installed."""
    found = importlib.util.find_spec("torchcts")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("TorchCTS is not installed: `make test-torchcts` installs it")
    return Path(found.origin).parent


def prepare() -> None:
    """Has the installed suite compare on the CPU as well."""
    lift_exemptions()


def environment(device: str) -> dict[str, str]:
    """As a child of itself, it neither probes the device nor starts more processes."""
    return {"_TORCHCTS_SUBPROCESS": "1"}


def arguments(scratch: Path, device: str, nodes: list[str] | None) -> list[str]:
    """It reads its manifest from where it is started."""
    (scratch / "manifest.py").write_text(
        "from torch_tenon.testing.others.torchcts import manifest as of\n"
        f"manifest = of({device!r})\n"
    )
    home = folder()
    where = {home} if nodes is None else {home.parent / node.split("::")[0] for node in nodes}
    options = ["--device", device, "--rootdir", str(home.parent)]
    options += ["--known-segfault-policy", "off", "--adaptive-isolation", "off"]
    options += ["--level", "8", "--results-dir", str(scratch / "results")]
    return [*map(str, sorted(where)), *options, "--ignore", str(home / "selftest")]


def begin() -> None:
    """Has the suite take a newer PyTorch, and spend no time on stacks."""
    take_newer_for_newest()
    look_at_no_stack()


def collected(config: pytest.Config) -> None:
    """The suite would write all results down after each node."""
    for module in config.pluginmanager.get_plugins():
        if hasattr(module, "flush_results_to_disk"):
            module._ARTIFACT_WRITES_ENABLED = False


def name_of(node: str) -> str | None:
    """The same on each device."""
    return node


def lift_exemptions() -> None:
    """Has the installed suite compare on the CPU what it compares on other devices."""
    suite = folder()
    mark = suite / _LIFTED
    if mark.exists():
        return
    changed: dict[Path, str] = {}
    count = 0
    for name in _EXEMPT_FOLDERS:
        for path in sorted((suite / name).rglob("*.py")):
            text, places = _EXEMPTION.subn(
                lambda found: str(found[1] == "!="), path.read_text(encoding="utf-8")
            )
            if places:
                changed[path] = text
                count += places
    if count != _EXEMPTIONS:
        raise RuntimeError(
            f"{suite} exempts the CPU in {count} places, and not in {_EXEMPTIONS}: this adapter "
            "was written for another release"
        )
    for path, text in changed.items():
        path.write_text(text, encoding="utf-8")
    mark.touch()


def take_newer_for_newest() -> None:
    """Gives a PyTorch newer than the suite's contracts those of the newest that it has.

    Called before the rest of the suite is imported.
    """
    from torchcts.core import pytorch_compat, version_rules

    newest = version_rules.parse_torch_version(_NEWEST_CONTRACTS)
    normalize: Callable[..., str | None] = pytorch_compat.normalize_torch_version

    @functools.cache
    def normalized(version: str | None = None) -> str | None:
        own = normalize(version)
        parsed = version_rules.parse_torch_version(own)
        return _NEWEST_CONTRACTS if parsed is not None and parsed > newest else own

    pytorch_compat.normalize_torch_version = normalized
    # It reads what is known of all ops, for each node anew, which is minutes of a start.
    from torchcts import op_metadata

    known = op_metadata._validation_metadata(None)
    op_metadata._validation_metadata = lambda metadata: known


def look_at_no_stack() -> None:
    """For each input that a database makes, PyTorch walks over the stack, sources and all, for the
    `TestCase` that asked. The suite has none, and would spend most of its time there."""
    from torch.testing._internal import common_utils
    from torch.testing._internal.opinfo import core

    for module in (common_utils, core):
        module.extract_test_fn = lambda: None  # type: ignore[attr-defined]


def manifest(device: str) -> dict[str, Any]:
    """What the suite is told of a device: it has everything, as the suite's own form for that."""
    path = folder() / "templates" / "manifest.complete.py"
    values: dict[str, Any] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), values)
    return values["manifest"] | {
        "device_name": device,
        "backend_import": None if device == "cpu" else "torch_tenon",
    }
