"""The device that the suite runs on: two devices, so that no test relies on there being one.

With TENON_TARGET the suite runs on another target than the cpu, less what has its own processes or
is about the compiler and the tools. `--sample 3/8` takes the third of eight parts of the tests.
A test of several execution modes runs each of its variations in one mode. Of these a sample has
MOST_VARIATIONS, or n where the test is marked `sampled(n)`: which, `--seed` says. Of the cases
within a test the fixture `some` takes a sample. The sample takes turns, and the commit says whose
turn it is. With each commit the other half of a test's variations runs, and another seventh of the
tests that are marked `slow`. `--turn all` runs the whole sample, `--whole` all there is.
"""

import os

os.environ.setdefault("TENON_DEVICES", "2")  # Read when PyTorch is imported.
# What earlier runs learned would hide what a first call does; tests of that switch it on.
os.environ.setdefault("TENON_PLAN_FILES", "0")
# A test's windows are small, and do not come often.
os.environ.setdefault("TENON_PLAN", "all")

import gc
import logging
import random
import re
import signal
import subprocess
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

# A shell has what it runs in the background ignore interrupts, which tests send themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import torch
from against_cpu import executing

from torch_tenon import _C
from torch_tenon.builder.counts import plan_counts
from torch_tenon.config import EXECUTE_MODES
from torch_tenon.frontends.after_import import after_import
from torch_tenon.pytorch import process

T = TypeVar("T")

TESTS = Path(__file__).parent

# Until the tests are found: collections would walk over all of PyTorch, again and again.
gc.disable()

# pytest listens to loggers that do not propagate, and where somebody listens PyTorch's compiler
# writes down each of its steps.
logging.getLogger("torch.__trace").propagate = True


def _measure_no_guards(guards: Any) -> None:
    guards.profile_guard_manager = lambda *_: 0.0


# Dynamo measures how long the guards of each graph take, for its log, with all caches flushed.
after_import({"torch._dynamo.guards": _measure_no_guards})

if torch.tenon.target_name() != "cpu":
    collect_ignore_glob = [
        f"{name}/*"
        for name in (
            *("builder", "compiler", "distributed", "exporting"),
            *("ir", "ops", "targets", "testing"),
        )
    ]
    collect_ignore = [
        *(f"test_{name}.py" for name in ("cli", "config", "docs", "doctor")),
        *(f"test_{name}.py" for name in ("faults", "leak", "processes", "report")),
        *(f"frontends/test_{name}.py" for name in ("common_nodes", "dynamo", "dynamo_on_device")),
        *("frontends/test_compiler_missing.py", "frontends/test_torch_compile.py"),
        "test_standalone_models.py",
        *(
            f"profiler/test_{name}.py"
            for name in ("advice_scripts", "collect", "log", "page", "sizes")
        ),
    ]

# What `make smoke` runs: that each part of the device works with the PyTorch that is installed.
SMOKE = {
    *("test_accelerator.py", "test_loading.py", "test_pytorch_versions.py", "test_surface.py"),
    *("test_recording.py", "test_views.py", "test_autograd.py", "test_custom_ops.py"),
    *("test_models.py", "test_optimizers.py", "test_random.py", "test_serialization.py"),
    *("test_torch_accelerator.py", "test_graphs.py", "ops/test_manifest.py"),
    *("frontends/test_eager_plans.py", "frontends/test_torch_compile.py"),
    *("builder/test_plan_files.py", "exporting/test_programs.py", "profiler/test_collect.py"),
    *("distributed/test_collectives.py", "testing/test_device_generic.py"),
}
# What one process would be left with at the end, if it began late.
DEAREST = (
    *("test_runtime.py", "targets/test_other_targets.py", "distributed/test_training.py"),
    *("targets/opencl/test_opencl.py", "test_sizes.py"),
    *("frontends/test_torch_compile.py", "exporting/test_programs.py", "test_aliases.py"),
    *("distributed/test_collectives.py", "frontends/test_dynamo_on_device.py"),
    *("profiler/test_page.py", "profiler/test_page_in_a_browser.py", "builder/test_standby.py"),
    *("builder/test_plan_files.py", "builder/test_builder_process.py", "test_standalone_models.py"),
)
# All of whose tests are `long`.
LONG = {TESTS / "ops" / "test_sizes_of_ops.py"}
MOST_VARIATIONS = 2  # of a test, where it does not say how many
TURNS = 7  # in so many commits each slow test runs once; in twice as many, its whole sample


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", default="1/1", metavar="K/N", help="part K of N of the tests")
    parser.addoption("--seed", type=int, default=0, help="which variations a sample has")
    parser.addoption("--turn", metavar="N|all", help="whose turn it is, not the commit's")
    parser.addoption("--whole", action="store_true", help="all variations, and no sample of them")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves files out of which nothing would run, and that take long to collect."""
    is_left_out = config.option.markexpr == "not long"
    return True if is_left_out and collection_path in LONG else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the part that `--sample` names, and of what is `sampled` a sample. The id of a test
    decides: it is in the same part today and tomorrow, whatever other tests there are."""
    for item in items:
        if str(item.path.relative_to(TESTS)) in SMOKE:
            item.add_marker(pytest.mark.smoke)
    found = re.fullmatch(r"(\d+)/(\d+)", config.getoption("sample"))
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise pytest.UsageError("--sample takes a part and how many there are, as in 1/8")
    part, parts = int(found[1]) - 1, int(found[2])
    chosen = [item for item in items if _number(item) % parts == part]
    if not config.getoption("whole"):
        # Those that were asked for by their names all run.
        named = any("::" in argument for argument in config.invocation_params.args)
        if not named:
            given = config.getoption("turn") or str(_commits())
            turn = None if given == "all" else int(given)
            if turn is not None:
                chosen = _in_turn(chosen, turn)
            chosen = _sample(chosen, config.getoption("seed"), turn)
    if len(chosen) < len(items):
        kept = set(chosen)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = chosen
    items.sort(key=_begins(items))


def pytest_collection_finish() -> None:
    """What collecting has loaded stays: the interpreter's collections, which tests ask for, need
    not walk over it."""
    gc.enable()
    gc.collect()
    gc.freeze()


def _number(item: pytest.Item, seed: int = 0) -> int:
    return zlib.crc32((item.nodeid + (str(seed) if seed else "")).encode())


def _begins(items: list[pytest.Item]) -> Callable[[pytest.Item], tuple[int, int]]:
    """When a test's file begins, where processes share the files: the dearest first, then those of
    many tests, so that no process is left alone at the end."""
    tests = Counter(item.path for item in items)
    dearest = {TESTS / name: k for k, name in enumerate(DEAREST)}
    return lambda item: (dearest.get(item.path, len(DEAREST)), -tests[item.path])


def _sample(items: list[pytest.Item], seed: int, turn: int | None) -> list[pytest.Item]:
    """Some variations of each test, each in one mode; at a turn half of these."""
    variations: dict[tuple[str, tuple[str, ...]], list[pytest.Item]] = {}
    for item in items:
        variations.setdefault(_without_mode(item), []).append(item)
    of_tests: dict[str, list[pytest.Item]] = {}
    for (test, _), in_modes in variations.items():
        of_tests.setdefault(test, []).append(min(in_modes, key=lambda item: _mode_rank(item, seed)))
    kept = set()
    for found in of_tests.values():
        mark = found[0].get_closest_marker("sampled")
        most = MOST_VARIATIONS if mark is None else mark.args[0]
        drawn = sorted(found, key=lambda item: _number(item, seed))[:most]
        kept.update(drawn if turn is None else drawn[turn % min(2, len(drawn)) :: 2])
    return [item for item in items if item in kept]


def _commits() -> int:
    """How many there are up to this one; 0 where there is no repository."""
    command = ["git", "-C", str(TESTS), "rev-list", "--count", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 0


def _in_turn(items: list[pytest.Item], turn: int) -> list[pytest.Item]:
    """Without the slow tests whose turn it is not. A file's slow tests are dealt out, so that no
    turn has all of them and each has one; a test's variations have the same turn."""
    tests: dict[Path, dict[str, bool]] = {}
    for item in items:
        is_slow = item.get_closest_marker("slow") is not None
        tests.setdefault(item.path, {})[_test(item)] = is_slow
    waiting = set()
    for path, found in tests.items():
        first = zlib.crc32(path.name.encode())
        slow = sorted((t for t in found if found[t]), key=lambda t: zlib.crc32(t.encode()))
        late = {t for k, t in enumerate(slow) if (first + k) % TURNS != turn % TURNS}
        if len(late) == len(found):
            late.remove(slow[turn % len(slow)])
        waiting |= late
    return [item for item in items if _test(item) not in waiting]


def _test(item: pytest.Item) -> str:
    """Its name without that of the variation."""
    return item.nodeid.partition("[")[0]


def _without_mode(item: pytest.Item) -> tuple[str, tuple[str, ...]]:
    """Which test it is, and which of its variations, in whatever mode of execution."""
    parameters = item.callspec.indices if hasattr(item, "callspec") else {}
    others = (f"{name}={k}" for name, k in parameters.items() if not _is_mode(item, name))
    return _test(item), tuple(sorted(others))


def _is_mode(item: pytest.Item, name: str) -> bool:
    value = item.callspec.params[name]
    return isinstance(value, str) and value in EXECUTE_MODES


def _mode_rank(item: pytest.Item, seed: int) -> tuple[bool, int]:
    """By reference alone runs one of four: in the other modes the first calls do as well."""
    number = _number(item, seed)
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    by_reference = any(isinstance(p, str) and p == "reference" for p in parameters.values())
    return by_reference and number % 4 > 0, number


# Of a test that looks at what plans in the background do as well: the background is quiet before.
LOOKS_AT_ALL = {"caplog", "compiled", "recwarn"}


@pytest.fixture(autouse=True)
def same_device_and_seed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test starts on tenon:0 with the same random numbers, whatever the one before did, and
    its calls are recorded, however many windows there were that did not come again."""
    if not LOOKS_AT_ALL.isdisjoint(request.fixturenames):
        wait_for_plans()
    _C.set_execute_mode(_C.execute_mode())
    torch.tenon.set_device(0)
    torch.manual_seed(0)
    yield
    torch.tenon.set_device(0)
    forget_plans()


@pytest.fixture
def some(request: pytest.FixtureRequest) -> Callable[[Iterable[T], int], list[T]]:
    """Chooses at most so many of some cases, in their order: which, `--seed` says. With `--whole`
    all of them."""

    def choose(cases: Iterable[T], most: int) -> list[T]:
        found = list(cases)
        if request.config.getoption("whole") or len(found) <= most:
            return found
        draw = random.Random(_number(request.node, request.config.getoption("seed")))
        return [found[k] for k in sorted(draw.sample(range(len(found)), most))]

    return choose


@pytest.fixture(scope="session")
def third_party() -> None:
    """Third parties' ops: an extension in C++, built once and kept with PyTorch's others."""
    from torch.utils.cpp_extension import load

    os.environ.setdefault("MAX_JOBS", "1")
    source = TESTS / "extension" / "third_party.cpp"
    load("tenon_third_party", [str(source)], is_python_module=False, extra_cflags=["-O0", "-g0"])


@pytest.fixture
def compiled() -> Iterator[None]:
    """Every window runs by a plan, and waits for it."""
    with executing("compiled"):
        yield


def forget_plans() -> None:
    """What the test asked for and did not wait for is not made, but for the plan in work; windows
    may ask again."""
    builder = process.builder
    if builder is None:
        return
    with builder.changed:
        forgotten = [builder.waiting.pop() for _ in range(len(builder.waiting) - 1)]
        builder.changed.notify_all()
    for window in forgotten:
        window.finish()


def wait_for_plans() -> None:
    _C.commit_all()
    while plan_counts()["waiting"]:
        time.sleep(0.01)


@pytest.fixture
def no_plan_in_work() -> None:
    """What tests before this one asked for is compiled: the background is quiet."""
    wait_for_plans()


@pytest.fixture
def nothing_leaked() -> Iterator[None]:
    """The test's device memory is free at its end."""

    def allocated() -> list[int]:
        gc.collect()
        wait_for_plans()  # to make a plan takes memory for a while; calls that wait keep theirs
        for index in range(torch.tenon.device_count()):  # and so does work in flight
            torch.tenon.current_stream(index).synchronize()
        return [torch.tenon.memory_allocated(i) for i in range(torch.tenon.device_count())]

    before = allocated()
    yield
    after = allocated()
    assert after == before, f"bytes allocated by device, before {before}, after {after}"


@pytest.fixture
def memory_limit() -> Iterator[None]:
    """Gives both devices their whole memory back at the end."""
    yield
    for index in range(torch.tenon.device_count()):
        torch.tenon.set_memory_limit(None, index)
