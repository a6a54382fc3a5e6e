"""`tenon profile`: runs a script as `python script` does, and writes what it did."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch_tenon import _C
from torch_tenon.reports.profiler import page
from torch_tenon.reports.profiler.collect import Collector
from torch_tenon.reports.profiler.log import ON_DEVICE
from torch_tenon.reports.profiler.summary import FORMAT, summarise
from torch_tenon.reports.running import run_script, said

_LIVE_PAUSE = 0.5  # seconds
_running = threading.Lock()  # not of forks: nobody waits for it


class NotAProfile(ValueError):
    """A file that is no profile."""


class Written(NamedTuple):
    """What came of a run: its files, the script's exit status, and the profile."""

    page: Path
    data: Path
    status: int
    profile: dict[str, Any]


def load(path: Path) -> dict[str, Any]:
    """A profile that was written before. Raises NotAProfile for another file, OSError where it
    cannot be read."""
    try:
        found = json.loads(path.read_text())
    except ValueError as error:  # also UnicodeDecodeError
        raise NotAProfile(f"{path} is no profile: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise NotAProfile(f'{path} is no profile: it has no "format": "{FORMAT}"')
    missing = [name for name in page.COMPARED if name not in found]
    if missing:
        raise NotAProfile(f"{path} is no profile: it has no {', '.join(missing)}")
    return found


def run(
    script: Path, arguments: Sequence[str], output: Path, against: Path | None = None
) -> Written:
    """Runs a Python file as `python script arguments...` does, and writes the page `output` and,
    beside it, the same as JSON.

    `against` is the JSON of another run, to which the page compares this one. Raises NotAProfile
    and OSError before the script runs where that is none or the files cannot be written, OSError
    after it where there is no space for one of them, and RuntimeError within another such run.
    """
    if not _running.acquire(blocking=False):
        raise RuntimeError("tenon profile runs already, in this process: profile one script a time")
    try:
        return _profiled(script, arguments, output, against)
    finally:
        _running.release()


def _profiled(
    script: Path, arguments: Sequence[str], output: Path, against: Path | None
) -> Written:
    before = None if against is None else load(against)
    data = output.with_suffix(".json")
    for path in (output, data):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
    collector, status, error = _run(script, arguments)
    made = summarise(collector, [str(script), *arguments], status, error)
    _write(data, json.dumps(made))
    _write(output, page.render(made, before))
    return Written(output, data, status, made)


def _write(path: Path, text: str) -> None:
    """Writes a file whole, or leaves what was there, if that was anything."""
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_text(text)
        os.replace(new, path)
    except OSError as error:
        if path.stat().st_size == 0:
            path.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        new.unlink(missing_ok=True)


def _run(script: Path, arguments: Sequence[str]) -> tuple[Collector, int, str]:
    traced = _C.traces_calls()
    _C.set_trace_calls(True)
    collector = Collector()
    live = _Live(collector)
    try:
        status, error = run_script(script, arguments)
    finally:
        live.stop()
        _C.set_trace_calls(traced)
        late = _stop(collector)
    return collector, status, late or error


def _stop(collector: Collector) -> str:
    """Ends the collection; what a late error says, if nobody has read what it is of."""
    try:
        collector.stop()
    except Exception as raised:
        traceback.print_exc()
        collector.stop()
        return said(raised)
    return ""


class _Live:
    """A line that tells how it goes, where somebody looks."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._over = threading.Event()
        self._worker = threading.Thread(target=self._work, name="tenon profile line", daemon=True)
        if sys.stderr.isatty():
            self._worker.start()

    def stop(self) -> None:
        """Takes the line away."""
        self._over.set()
        if self._worker.is_alive():
            self._worker.join()
            sys.stderr.write("\r\x1b[K")

    def _work(self) -> None:
        while not self._over.wait(_LIVE_PAUSE):
            sys.stderr.write(f"\r\x1b[K{status_line(self._collector)}")
            sys.stderr.flush()


def status_line(collector: Collector) -> str:
    """`12 s: 3,402 kernels and calls, 61 % computing, 8 % recording, 2,103 waits`."""
    seconds = max(collector.seconds(), 1e-9)
    device = collector.total(*ON_DEVICE)
    recording = collector.total("record")
    waits = collector.total("wait").count
    return (
        f"{seconds:.0f} s: {device.count:,} kernels and calls, "
        f"{device.nanoseconds / 1e7 / seconds:.0f} % computing, "
        f"{recording.own / 1e7 / seconds:.0f} % recording, {waits:,} waits, "
        f"{time.strftime('%H:%M:%S')}"
    )
