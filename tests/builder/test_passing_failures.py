"""What keeps a plan from being made today and not tomorrow is no reason that is kept."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from fresh_process import output

from torch_tenon.builder.planning import is_proven
from torch_tenon.ops.lowerings.table import CannotLower
from torch_tenon.targets.cpu.toolchain import is_of_source
from torch_tenon.targets.target import CompileError, CompilerMissing

SCRIPT = """
    import json, sys, time
    import torch
    from torch_tenon.builder.counts import plan_counts

    x = torch.arange(40.0).to("tenon")
    start = time.monotonic()
    while time.monotonic() < start + float(sys.argv[1]) and not plan_counts()["hits"]:
        if sys.argv[2:] and plan_counts()["failed"]:
            break
        assert (x * 2 + 1).sum().item() == 1600
        time.sleep(0.005)
    print(json.dumps({"seconds": time.monotonic() - start, **plan_counts()}))
"""
# Fails in its own way as often as a file says, and while another one is there, and then is gcc. The
# driver of products, which a builder compiles when it begins, is none of a plan's kernels.
COMPILER = """#!/bin/sh
case "$*" in *--version*) exec gcc "$@";; esac
for word; do case "$word" in *.c) grep -q pack_windows "$word" && exec gcc "$@";; esac; done
echo once >> {tries}
test $(wc -l < {tries}) -gt {failures} && ! test -e {broken} && exec gcc "$@"
{way}
"""
KILLED = "kill -9 $$"
FULL = "echo 'unit.c:1:1: fatal error: error writing to x.s: No space left on device' >&2; exit 1"
REFUSED = "echo \"unit.c:3:7: error: expected ';' before 'x'\" >&2; exit 1"


class Machine:
    """A cache directory, and a compiler that fails."""

    def __init__(self, folder: Path, way: str, failures: int) -> None:
        self.folder, self.tries = folder, folder / "tries"
        self.compiler = folder / "cc"
        self.broken = folder / "broken"
        text = COMPILER.format(tries=self.tries, failures=failures, broken=self.broken, way=way)
        self.compiler.write_text(text)
        self.compiler.chmod(0o700)

    def run(self, builder: str, once: bool = False) -> dict[str, Any]:
        """Runs the script until it runs by a plan; `once`: or its plan has failed."""
        printed = output(
            SCRIPT,
            "200",
            *(["once"] if once else []),
            TENON_CC=str(self.compiler),
            TENON_CACHE_DIR=str(self.folder / "cache"),
            TENON_PLAN_FILES="1",
            TENON_BUILDER=builder,
        )
        found: dict[str, Any] = json.loads(printed)
        return found

    def compilations(self) -> int:
        return len(self.tries.read_text().splitlines()) if self.tries.exists() else 0


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("way", "builder"), [(KILLED, "thread"), (FULL, "thread"), (KILLED, "process")]
)
def test_it_is_tried_again_and_not_too_often(tmp_path: Path, way: str, builder: str) -> None:
    machine = Machine(tmp_path, way, failures=2)
    first = machine.run(builder)
    # Half a second and two seconds from when it was asked for; at once would be milliseconds.
    assert first["hits"] > 0 and first["seconds"] > 1
    assert machine.compilations() == 3
    second = machine.run(builder)
    assert second["hits"] > 0 and machine.compilations() == 3


@pytest.mark.slow
def test_another_process_tries_as_well(tmp_path: Path) -> None:
    machine = Machine(tmp_path, KILLED, failures=0)
    machine.broken.touch()
    first = machine.run("thread", once=True)
    assert not first["hits"] and machine.compilations() >= 1
    machine.broken.unlink()
    assert machine.run("thread")["hits"] > 0


@pytest.mark.slow
def test_a_reason_that_holds_is_kept(tmp_path: Path) -> None:
    machine = Machine(tmp_path, REFUSED, failures=1000)
    assert machine.run("thread", once=True)["failed"] > 0
    before = machine.compilations()
    assert before > 0
    assert machine.run("thread", once=True)["failed"] > 0
    assert machine.compilations() == before


@pytest.mark.parametrize(
    ("error", "proven"),
    [
        (CannotLower("no loops"), True),
        (NotImplementedError("no such kernel"), True),
        (CompileError("it refuses", is_of_source=True), True),
        (CompileError("it was killed"), False),
        (CompilerMissing("no gcc"), False),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), False),
        (MemoryError(), False),
        (RuntimeError("can't start new thread"), False),
    ],
)
def test_only_what_the_window_shows_is_proven(error: Exception, proven: bool) -> None:
    assert is_proven(error) is proven


@pytest.mark.parametrize(
    ("words", "of_source"),
    [
        ("/tmp/tenon-1/unit.c:40:12: error: 'x' undeclared", True),
        ("gcc: fatal error: CPU time limit exceeded signal terminated program cc1", True),
        ("gcc: fatal error: Killed signal terminated program cc1", False),
        ("unit.c:1:1: fatal error: error writing to /tmp/x.s: No space left on device", False),
        ("collect2: fatal error: ld terminated with signal 9 [Killed]", False),
        ("unit.c:9:3: internal compiler error: Segmentation fault", False),
        ("", False),
    ],
)
def test_what_a_compiler_says_of_the_source(words: str, of_source: bool) -> None:
    assert is_of_source(words) is of_source
