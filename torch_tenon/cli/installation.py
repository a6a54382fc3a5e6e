"""What is here and what is missing: the facts that `tenon doctor` shows.

Each check answers even if the ones before it failed, so that one broken thing does not hide the
rest; what a check cannot find out, it says, with the error.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_tenon import config, loading

OLDEST_PYTHON = (3, 11)
# Debian's packages for programs that the optional parts use.
_PROGRAMS = {"g++": "g++", "make": "make"}
# Where the module is not called like the distribution.
_MODULES = {"scikit-learn": "sklearn", "pytest-timeout": "pytest_timeout", "pyyaml": "yaml"}


@dataclass(frozen=True)
class Finding:
    """One line of the report. `remedy` is a command, or what else to do, if not all is well."""

    name: str
    text: str
    ok: bool = True
    needed: bool = True
    remedy: str = ""

    @property
    def failed(self) -> bool:
        """Whether something needed is missing."""
        return self.needed and not self.ok


def examine() -> list[Finding]:
    """Runs every check, in the order of the report. Imports torch, and so loads the device."""
    checks: list[Callable[[], list[Finding]]] = [
        _python,
        _torch,
        _device,
        _compiler,
        _cache,
        _settings,
        _extras,
        _programs,
    ]
    return [finding for check in checks for finding in check()]


def requirements() -> dict[str, dict[str, str]]:
    """The pinned versions of what the distribution depends on: extra (`""` for none) -> name ->
    version. Empty where neither the installed metadata nor pyproject.toml is there.
    """
    try:
        lines = importlib.metadata.requires("torch-tenon") or []
    except importlib.metadata.PackageNotFoundError:
        lines = _source_requirements()
    pattern = re.compile(r"""([\w.-]+)==([\w.+-]+)(?:\s*;\s*extra\s*==\s*["']([\w-]+)["'])?""")
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        if match := pattern.fullmatch(line.strip()):
            name, version, extra = match.groups()
            found.setdefault(extra or "", {})[name.lower()] = version
    return found


def install_command(extra: str) -> str:
    """The command that installs what an extra needs and is not there, in the pinned versions."""
    missing = [f"{name}=={version}" for name, version in _missing(extra).items()]
    return f"pip install {' '.join(missing)}" if missing else f"pip install torch-tenon[{extra}]"


def _missing(extra: str) -> dict[str, str]:
    return {
        name: version
        for name, version in requirements().get(extra, {}).items()
        if _installed(name) is None
        and importlib.util.find_spec(_MODULES.get(name, name.replace("-", "_"))) is None
    }


def _source_requirements() -> list[str]:
    # A source tree that was not installed, only built in place.
    path = Path(__file__).parents[2] / "pyproject.toml"
    if not path.is_file():
        return []
    settings = tomllib.loads(path.read_text())
    extras = settings["project"].get("optional-dependencies", {})
    return [
        *settings["tool"]["torch-tenon"]["dependencies"],
        *_release_of_pytorch(settings["build-system"]["requires"]),
        *(f'{line} ; extra == "{name}"' for name, lines in extras.items() for line in lines),
    ]


def _release_of_pytorch(build: list[str]) -> list[str]:
    # The one that the extension is built against; before that, the one that a build would take.
    built_for = loading.built_for()
    if built_for is not None:
        return [f"torch=={built_for.partition('+')[0]}"]
    return [line for line in build if line.startswith("torch==")]


def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python() -> list[Finding]:
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return [
        Finding(
            "Python",
            f"{platform.python_version()}, {sys.executable}",
            ok=sys.version_info >= OLDEST_PYTHON,
            remedy=f"install Python {oldest} or later",
        )
    ]


def _torch() -> list[Finding]:
    found, pinned = _installed("torch"), requirements().get("", {}).get("torch")
    wanted = f"torch=={pinned}" if pinned else "torch"
    if found is None:
        text = f"not installed; {wanted} is needed"
        return [Finding("PyTorch", text, ok=False, remedy=f"pip install {wanted}")]
    # A build for some accelerator is marked after a plus and is the same version.
    same = pinned is None or found.partition("+")[0] == pinned
    text = f"{found}, pinned: {pinned or 'unknown'}"
    remedy = f"pip install {wanted}, and build the extension again"
    return [Finding("PyTorch", text, ok=same, remedy=remedy)]


def _device() -> list[Finding]:
    build = "pip install --no-build-isolation -e . in the source tree"
    if importlib.util.find_spec("torch_tenon._C") is None:
        text = "the extension torch_tenon._C is not built"
        return [Finding("Device", text, ok=False, remedy=build), _target()]
    problem = loading.mismatch(_installed("torch") or "none")
    if problem is not None:
        remedy = problem.rpartition("; ")[2]
        return [Finding("Device", problem, ok=False, remedy=remedy), _target()]
    try:
        module = _load_device()
        count = module.device_count()
        from torch_tenon.device import target

        facts = [Finding(name, text) for name, text in target().facts().items()]
    except Exception as error:
        # Whatever keeps the device from loading is what the user came here to see.
        reason = root_cause(error)
        text = f"does not load: {type(reason).__name__}: {reason}"
        others = any(setting.is_set() for setting in config.SETTINGS)
        by_setting = others and not isinstance(reason, ImportError)
        remedy = "look at the settings below" if by_setting else build
        return [Finding("Device", text, ok=False, remedy=remedy), _target()]
    plural = "device" if count == 1 else "devices"
    remedy = f"look at {config.TARGET.variable} and {config.DEVICES.variable}"
    return [
        Finding("Device", f"tenon, {count} {plural}", ok=count > 0, remedy=remedy),
        _target(),
        *facts,
    ]


def root_cause(error: BaseException) -> BaseException:
    """The error that another one, such as PyTorch's about a backend that fails, was raised from."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _load_device() -> Any:
    # Importing torch loads the device, unless that was switched off or failed.
    torch = importlib.import_module("torch")
    loading.register()
    return torch.get_device_module("tenon")


def _target() -> Finding:
    try:
        return Finding("Target", config.TARGET.read())
    except config.ConfigError as error:
        return Finding("Target", str(error), ok=False, remedy=f"unset {config.TARGET.variable}")


def _compiler() -> list[Finding]:
    without = "without one, ops run by reference execution only"
    try:
        compiler = config.CC.read()
    except config.ConfigError as error:
        remedy = f"unset {config.CC.variable}"
        return [Finding("C compiler", str(error), ok=False, remedy=remedy)]
    if compiler is None:
        text = f"none of {', '.join(config.COMPILERS)} on PATH; {without}"
        remedy = "pip install 'torch-tenon[compiler]', or sudo apt install gcc"
        return [Finding("C compiler", text, ok=False, needed=False, remedy=remedy)]
    try:
        done = subprocess.run(
            [*shlex.split(compiler), "--version"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        version = done.stdout.strip().splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        text = f"{compiler} does not tell its version: {error}"
        remedy = f"set {config.CC.variable} to a C compiler"
        return [Finding("C compiler", text, ok=False, needed=False, remedy=remedy)]
    return [Finding("C compiler", f"{compiler}: {version}")]


def _cache() -> list[Finding]:
    path = config.CACHE_DIR.read()
    problem = config.cache_problem(path)
    if problem is not None:
        return [Finding("Cache", problem, ok=False, remedy=problem.rpartition("; ")[2])]
    if not os.path.isdir(path):
        return [Finding("Cache", f"{path}, not made yet")]
    count, nbytes = _size(path)
    return [Finding("Cache", f"{path}, {_in_units(nbytes)} in {count} files, yours alone")]


def _size(path: str) -> tuple[int, int]:
    count = nbytes = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                nbytes += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue  # Another process has just replaced it.
            count += 1
    return count, nbytes


def _in_units(nbytes: int) -> str:
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _settings() -> list[Finding]:
    findings = []
    for setting in config.SETTINGS:
        try:
            value = setting.read()
        except config.ConfigError as error:
            remedy = f"unset {setting.variable}"
            findings.append(Finding(setting.variable, str(error), ok=False, remedy=remedy))
            continue
        default = setting.default()
        if value != default:
            text = f"{config.as_text(value)} (default: {config.as_text(default)})"
            findings.append(Finding(setting.variable, text))
    return findings or [Finding("Settings", "all at their defaults")]


def _extras() -> list[Finding]:
    findings = []
    for extra in sorted(requirements()):
        name = f"Extra `{extra}`" if extra else "Packages"
        missing = ", ".join(_missing(extra))
        findings.append(
            Finding(
                name,
                f"missing: {missing}" if missing else "installed",
                ok=not missing,
                needed=not extra,
                remedy=install_command(extra),
            )
        )
    return findings


def _programs() -> list[Finding]:
    missing = [package for program, package in _PROGRAMS.items() if shutil.which(program) is None]
    if not missing:
        return [Finding("Build tools", ", ".join(_PROGRAMS), needed=False)]
    text = f"missing: {', '.join(missing)}; needed to build the extension from source"
    remedy = f"sudo apt install {' '.join(missing)}"
    return [Finding("Build tools", text, ok=False, needed=False, remedy=remedy)]
