"""Every setting of torch-tenon, and the only place where its environment is read.

A setting is read when it is asked for (`DEVICES.read()`), so a change of the environment counts
from the next call on; code that must not change its mind keeps the value. This module imports
nothing heavy: it is on the path of `import torch`.
"""

import os
import stat
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

LOG_STAGES = ("ops", "target", "waits", "plans", "program", "schedule", "memory", "code", "cache")
# In the order of `ExecuteMode` in csrc/pytorch/record/record.h.
EXECUTE_MODES = ("auto", "reference", "compiled", "verify", "direct")
BUILDERS = ("process", "thread", "off")
PLANS = ("worthwhile", "all")
COMMITS = ("adaptive", "each")
OPENCL_LAYOUTS = ("auto", "cpu", "gpu")
OPENCL_REPLAYS = ("auto", "buffer", "kernels", "off")
COMPILERS = ("cc", "gcc", "clang")
COMPILER_PACKAGE = "ziglang"  # of Python's, with a C compiler in it
MOST_DEVICES = 64


class ConfigError(ValueError):
    """A setting has a value that it cannot have; the text names variable, value and remedy."""


class Setting(Generic[T]):
    """One setting: what it is called, where it comes from and what it may be.

    `parse` turns the variable's text into a value, or raises ValueError; `allowed` says in words
    what it accepts. `default` is called when the variable is unset or empty.
    """

    __slots__ = ("allowed", "default", "doc", "name", "parse", "type", "variable")

    def __init__(
        self,
        name: str,
        variable: str,
        type: str,
        default: Callable[[], T],
        parse: Callable[[str], T],
        allowed: str,
        doc: str,
    ) -> None:
        self.name = name
        self.variable = variable
        self.type = type
        self.default = default
        self.parse = parse
        self.allowed = allowed
        self.doc = doc

    def is_set(self) -> bool:
        """Whether the environment gives this setting a value; an empty variable gives none."""
        return bool(os.environ.get(self.variable, "").strip())

    def read(self) -> T:
        """The value now: the environment's, or else the default.

        Raises ConfigError, naming the variable, the value and what is allowed.
        """
        if not self.is_set():
            return self.default()
        text = os.environ[self.variable].strip()
        try:
            return self.parse(text)
        except ValueError:
            raise ConfigError(
                f"{self.variable}={text!r} is not valid: expected {self.allowed}. "
                f"({self.doc} Unset it to use the default.)"
            ) from None


class Difference(NamedTuple):
    """A setting whose value is not its default, both as text."""

    setting: Setting
    value: str
    default: str


def _parse_builder(text: str) -> str:
    if text.lower() not in BUILDERS:
        raise ValueError
    return text.lower()


def _parse_plans(text: str) -> str:
    if text.lower() not in PLANS:
        raise ValueError
    return text.lower()


def _parse_commits(text: str) -> str:
    if text.lower() not in COMMITS:
        raise ValueError
    return text.lower()


def _parse_opencl_replay(text: str) -> str:
    if text not in OPENCL_REPLAYS:
        raise ValueError
    return text


def _parse_opencl_layout(text: str) -> str:
    if text.lower() not in OPENCL_LAYOUTS:
        raise ValueError
    return text.lower()


def _parse_flag(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError
    return words[text.lower()]


def _parse_target(text: str) -> str:
    # What is named is looked up by whoever loads targets; here only the form is checked.
    location, colon, name = text.rpartition(":")
    if colon and not (location and name.isidentifier()):
        raise ValueError
    return text


def _parse_devices(text: str) -> int:
    count = int(text)
    if not 1 <= count <= MOST_DEVICES:
        raise ValueError
    return count


def _parse_structures(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError
    return count


def _parse_bytes(text: str) -> int:
    units = {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
    units |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "B": 1, "": 1}
    digits = text.rstrip("BKMGTIbkmgti ")
    unit = text[len(digits) :].strip().upper()
    number = float(digits)
    nbytes = number * units[unit] if unit in units else 0
    # One that is not a number, infinite, negative or less than a byte is as wrong as no number.
    if not 1 <= nbytes < 1 << 63:
        raise ValueError
    return int(nbytes)


def _parse_path(text: str) -> str:
    return os.path.abspath(os.path.expanduser(text))


def _which(name: str) -> str | None:
    import shutil  # Costs more than the rest of this module.

    return shutil.which(os.path.expanduser(name))


def _parse_compiler(text: str) -> str:
    import shlex

    # A path with spaces is one word, as long as it is there.
    words = [text] if _which(text) else shlex.split(text)
    found = _which(words[0]) if words else None
    if found is None:
        raise ValueError
    return shlex.join([found, *words[1:]])


def _parse_stages(text: str) -> tuple[str, ...]:
    stages = [stage.strip() for stage in text.split(",") if stage.strip()]
    if not set(stages) <= set(LOG_STAGES):
        raise ValueError
    return tuple(stage for stage in LOG_STAGES if stage in stages)


def _parse_execute(text: str) -> str:
    if text.lower() not in EXECUTE_MODES:
        raise ValueError
    return text.lower()


def _default_cache() -> str:
    # The XDG rules: a relative XDG_CACHE_HOME is to be ignored.
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):
        home = os.path.expanduser("~/.cache")
    return os.path.join(home, "torch_tenon")


def _default_compiler() -> str | None:
    import shlex

    found = next((shlex.quote(path) for name in COMPILERS if (path := _which(name))), None)
    return found or compiler_of_package()


def compiler_of_package() -> str | None:
    """The C compiler that pip has installed, if it has."""
    import importlib.util
    import shlex

    package = importlib.util.find_spec(COMPILER_PACKAGE)
    for folder in () if package is None else package.submodule_search_locations or ():
        if path := _which(os.path.join(folder, "zig")):
            return f"{shlex.quote(path)} cc"
    return None


TARGET: Setting[str] = Setting(
    "target",
    "TENON_TARGET",
    "name",
    lambda: "cpu",
    _parse_target,
    "the name of a built-in target, the name of an entry point in group `torch_tenon.targets`, "
    "`module:Class`, `path/to/file.py:Class`, or `path/to/library.so`",
    "The hardware behind the device.",
)
DEVICES: Setting[int] = Setting(
    "devices",
    "TENON_DEVICES",
    "integer",
    lambda: 1,
    _parse_devices,
    f"a whole number from 1 to {MOST_DEVICES}",
    "How many devices a target that can have any number of them presents.",
)
MEMORY_LIMIT: Setting[int | None] = Setting(
    "memory_limit",
    "TENON_MEMORY_LIMIT",
    "bytes",
    lambda: None,
    _parse_bytes,
    "a size in bytes, with or without a unit: 512MiB, 2GiB, 1.5GB, 1000000",
    "The most memory that a device hands out; by default what the target has.",
)
WARN_FALLBACK: Setting[bool] = Setting(
    "warn_fallback",
    "TENON_WARN_FALLBACK",
    "flag",
    lambda: False,
    _parse_flag,
    "1, true, yes, on, 0, false, no or off",
    "Warn once for each op that falls back to the host.",
)
TRACE_CALLS: Setting[bool] = Setting(
    "trace_calls",
    "TENON_TRACE_CALLS",
    "flag",
    lambda: False,
    _parse_flag,
    "1, true, yes, on, 0, false, no or off",
    "Note the Python line of each recorded call, for errors that come late, and of each wait and "
    "each call that runs at once, for the report.",
)
CACHE_DIR: Setting[str] = Setting(
    "cache_dir",
    "TENON_CACHE_DIR",
    "path",
    _default_cache,
    _parse_path,
    "a path",
    "Where compiled kernels and plans are kept; the user's own, with mode 0700.",
)
CACHE_LIMIT: Setting[int] = Setting(
    "cache_limit",
    "TENON_CACHE_LIMIT",
    "bytes",
    lambda: 4 << 30,
    _parse_bytes,
    "a size in bytes, with or without a unit: 512MiB, 2GiB, 1.5GB, 1000000",
    "What the cache directory may hold; what was used least recently goes first.",
)
CC: Setting[str | None] = Setting(
    "cc",
    "TENON_CC",
    "command",
    _default_compiler,
    _parse_compiler,
    "the name of a program on PATH or the path of one, and what comes before a source: "
    "`clang`, `ccache gcc -m64`",
    f"The cpu target's C compiler; by default the first of {', '.join(COMPILERS)} on PATH, then "
    f"the package {COMPILER_PACKAGE}, which the extra `compiler` installs.",
)
LOG: Setting[tuple[str, ...]] = Setting(
    "log",
    "TENON_LOG",
    "list",
    lambda: (),
    _parse_stages,
    f"a comma-separated list of {', '.join(LOG_STAGES)}",
    "The stages that write what they do to the log.",
)

EXECUTE: Setting[str] = Setting(
    "execute",
    "TENON_EXECUTE",
    "mode",
    lambda: "auto",
    _parse_execute,
    ", ".join(EXECUTE_MODES[:-1]) + f" or {EXECUTE_MODES[-1]}",
    "How eager code runs: `auto` by compiled plans, and by reference until they are ready; "
    "`reference` op by op on the host; `compiled` waits for every plan; `verify` compares both; "
    "`direct` runs small calls when they are made.",
)

BUILDER: Setting[str] = Setting(
    "builder",
    "TENON_BUILDER",
    "kind",
    lambda: "process",
    _parse_builder,
    ", ".join(BUILDERS[:-1]) + f" or {BUILDERS[-1]}",
    "Who makes plans: `process`, one that the user's programs share; `thread`, one of the "
    "program's own; `off`, nobody.",
)
PLAN: Setting[str] = Setting(
    "plan",
    "TENON_PLAN",
    "kind",
    lambda: "worthwhile",
    _parse_plans,
    " or ".join(PLANS),
    "Which windows get plans: `worthwhile`, those that have taken a twentieth of the time that a "
    "plan takes to make; `all` that come twice.",
)
PLAN_FILES: Setting[bool] = Setting(
    "plan_files",
    "TENON_PLAN_FILES",
    "flag",
    lambda: True,
    _parse_flag,
    "1, true, yes, on, 0, false, no or off",
    "Keep plans, and what is known of calls, for the next process; else a thread makes plans.",
)
STRUCTURES: Setting[int] = Setting(
    "structures",
    "TENON_STRUCTURES",
    "integer",
    lambda: 4096,
    _parse_structures,
    "an integer from 1 on",
    "How many windows of different structure a process keeps in memory with their plans; the one "
    "that was used least recently goes.",
)

COMMIT: Setting[str] = Setting(
    "commit",
    "TENON_COMMIT",
    "kind",
    lambda: "adaptive",
    _parse_commits,
    " or ".join(COMMITS),
    "When a device whose memory the host cannot reach starts what is enqueued: `adaptive`, a "
    "window's steps together, without waiting; `each` step alone, waiting for it.",
)

OPENCL_LAYOUT: Setting[str] = Setting(
    "opencl_layout",
    "TENON_OPENCL_LAYOUT",
    "kind",
    lambda: "auto",
    _parse_opencl_layout,
    ", ".join(OPENCL_LAYOUTS[:-1]) + f" or {OPENCL_LAYOUTS[-1]}",
    "What the opencl target lays kernels out for: `auto`, what the device is; `cpu`, or `gpu`, "
    "whatever it is, to try the one on the other.",
)

OPENCL_REPLAY: Setting[str] = Setting(
    "opencl_replay",
    "TENON_OPENCL_REPLAY",
    "kind",
    lambda: "auto",
    _parse_opencl_replay,
    ", ".join(OPENCL_REPLAYS[:-1]) + f" or {OPENCL_REPLAYS[-1]}",
    "How the opencl target replays what an exported program does in each run: `buffer`, as one "
    "command of a driver with cl_khr_command_buffer; `kernels`, whose arguments are set once; "
    "`auto`, the former but on a processor; `off`, not at all. Its library reads this.",
)

PRODUCTS: Setting[str] = Setting(
    "products",
    "TENON_PRODUCTS",
    "name",
    lambda: "own",
    str,
    "own, onednn or the path of a library",
    "What multiplies in exported programs of the cpu target, where their load does not say: `own`, "
    "the program's own code; `onednn`, that library where it is faster; or the path of another one "
    "that does what include/tenon.h says.",
)

SETTINGS: tuple[Setting, ...] = (
    TARGET,
    EXECUTE,
    DEVICES,
    MEMORY_LIMIT,
    WARN_FALLBACK,
    TRACE_CALLS,
    CACHE_DIR,
    CACHE_LIMIT,
    CC,
    LOG,
    BUILDER,
    PLAN,
    PLAN_FILES,
    STRUCTURES,
    COMMIT,
    OPENCL_LAYOUT,
    OPENCL_REPLAY,
    PRODUCTS,
)


def differences() -> list[Difference]:
    """The settings whose value is not their default. Raises ConfigError as `Setting.read` does."""
    found = []
    for setting in SETTINGS:
        value, default = setting.read(), setting.default()
        if value != default:
            found.append(Difference(setting, as_text(value), as_text(default)))
    return found


def as_text(value: object) -> str:
    """A setting's value as a person would write it."""
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ",".join(value) or "none"
    return str(value)


def cache_problem(path: str) -> str | None:
    """Why `path` cannot be trusted with compiled code, with the way out; None when it can.

    A directory that does not exist yet has no problem. What is loaded from the cache runs as the
    user, so nobody else may own it or be able to write into it.
    """
    user = os.getuid()
    elsewhere = f"set {CACHE_DIR.variable} to a directory of your own"
    try:
        link, found = os.lstat(path), os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            return f"the cache directory {path} is a link to nothing; remove it"
        return None
    except OSError as error:
        return f"the cache directory {path} cannot be looked at: {error.strerror}; {elsewhere}"
    if not stat.S_ISDIR(found.st_mode):
        return f"the cache directory {path} is not a directory; {elsewhere}"
    if link.st_uid != user or found.st_uid != user:
        owner = found.st_uid if found.st_uid != user else link.st_uid
        return f"the cache directory {path} belongs to user {owner}, not to {user}; {elsewhere}"
    mode = stat.S_IMODE(found.st_mode)
    if mode != 0o700:
        return (
            f"the cache directory {path} has mode {mode:04o} and must have 0700; "
            f"run `chmod 700 {path}`, or {elsewhere}"
        )
    return None


def cache_directory() -> str:
    """The cache directory, made with mode 0700 if it was not there.

    Raises ConfigError when it cannot be made or is not safe: see `cache_problem`.
    """
    path = CACHE_DIR.read()
    problem = cache_problem(path)
    if problem is None and not os.path.isdir(path):
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                pass  # Another process was first; whose directory it is, the check below says.
            else:
                os.chmod(path, 0o700)  # Whatever the umask.
        except OSError as error:
            problem = (
                f"the cache directory {path} cannot be made: {error.strerror}; "
                f"set {CACHE_DIR.variable} to a directory of your own"
            )
        else:
            problem = cache_problem(path)
    if problem is not None:
        raise ConfigError(problem)
    return path
