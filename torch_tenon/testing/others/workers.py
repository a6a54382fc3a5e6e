"""The processes that run a suite. One that crashes or hangs gives a result and is replaced."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from torch_tenon.testing.others.lines import (
    BEGUN,
    CRASHED,
    FINISHED,
    HUNG,
    LINES,
    NODES,
    SHARE,
    SUITE,
    append,
    read,
)
from torch_tenon.testing.others.suites import suite_of

# The ways to run a suite, and the variables of each.
CPU = "cpu"
MODES = {
    CPU: {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    "auto": {"TENON_EXECUTE": "auto"},
    "compiled": {"TENON_EXECUTE": "compiled"},
}


@dataclass(frozen=True)
class Outcome:
    """What came of a node: "passed", "failed", "skipped", "crashed" or "hung", and why."""

    outcome: str
    why: str = ""

    @property
    def passed(self) -> bool:
        """Whether it passed."""
        return self.outcome == "passed"


@dataclass(frozen=True)
class Runner:
    """How a suite is run: `folder` takes what the processes write, `select` is pytest's `-k`, and
    one node of `sample` runs."""

    suite: str
    folder: Path
    processes: int = 2
    select: str = ""
    sample: int = 1
    seconds_for_one: float = 600
    seconds_to_start: float = 3600  # a process collects the suite first, which takes minutes

    def run(self, mode: str, nodes: Iterable[str] | None = None) -> dict[str, Outcome]:
        """Runs these nodes, all by default, in one of the `MODES`."""
        suite_of(self.suite).prepare()
        self.folder.mkdir(parents=True, exist_ok=True)
        listed = None
        if nodes is not None:
            listed = self.folder / f"{mode}.nodes"
            listed.write_text("\n".join(nodes), encoding="utf-8")
        files = [self.folder / f"{mode}.{share}.lines" for share in range(self.processes)]
        for file in files:
            file.unlink(missing_ok=True)
        with ThreadPoolExecutor(self.processes) as threads:
            jobs = [
                threads.submit(self._run_share, mode, file, share, listed)
                for share, file in enumerate(files)
            ]
            for job in jobs:
                job.result()
        outcomes: dict[str, Outcome] = {}
        for file in files:
            for line in read(file):
                if line["outcome"] not in (BEGUN, FINISHED):
                    outcomes[line["node"]] = Outcome(line["outcome"], line["why"])
        return outcomes

    def _run_share(self, mode: str, lines: Path, share: int, listed: Path | None) -> None:
        """Starts processes until one has come to the end of the share."""
        device = CPU if mode == CPU else "tenon"
        # Some inputs are seeded by hashes of names.
        environment = os.environ | MODES[mode] | {"PYTHONHASHSEED": "0"}
        environment |= suite_of(self.suite).environment(device) | {SUITE: self.suite}
        environment |= {LINES: str(lines), SHARE: f"{share}/{self.processes}/{self.sample}"}
        if listed is not None:
            environment[NODES] = str(listed)
        output = lines.with_suffix(".output")
        fruitless = 0
        while True:
            before = len(read(lines))
            with tempfile.TemporaryDirectory() as scratch, output.open("w") as file:
                command = self._command(Path(scratch), device, listed)
                process = subprocess.Popen(
                    command, cwd=scratch, env=environment, stdout=file, stderr=file
                )
                hung = self._wait(process, lines)
            written = read(lines)
            fruitless = fruitless + 1 if len(written) == before else 0
            if 0 < fruitless < 3:  # something else ended it
                continue
            if fruitless:
                tail = output.read_text(errors="replace")[-3000:]
                raise RuntimeError(
                    "a process of the suite ended before its first node "
                    f"(exit status {process.returncode}):\n{tail}"
                )
            if written[-1]["outcome"] == FINISHED:
                return
            if written[-1]["outcome"] == BEGUN:
                node = written[-1]["node"]
                if hung:
                    append(lines, node, HUNG, f"after {self.seconds_for_one:.0f} s")
                else:
                    append(lines, node, CRASHED, f"exit status {process.returncode}")

    def _command(self, scratch: Path, device: str, listed: Path | None) -> list[str]:
        """One process of the suite."""
        (scratch / "pytest.ini").write_text("[pytest]\n")
        nodes = None if listed is None else listed.read_text(encoding="utf-8").splitlines()
        command = [sys.executable, "-m", "pytest", "-q", "-c", str(scratch / "pytest.ini")]
        command += ["-p", "torch_tenon.testing.others.plugin", "-p", "no:cacheprovider"]
        command += ["--continue-on-collection-errors"]
        command += suite_of(self.suite).arguments(scratch, device, nodes)
        return command + (["-k", self.select] if self.select else [])

    def _wait(self, process: subprocess.Popen[bytes], lines: Path) -> bool:
        """Waits for a process, and ends one that has written nothing for too long."""
        last = lines.stat().st_size if lines.exists() else 0
        since, limit = time.monotonic(), self.seconds_to_start
        while True:
            try:
                process.wait(timeout=1)
                return False
            except subprocess.TimeoutExpired:
                size = lines.stat().st_size if lines.exists() else 0
                if size != last:
                    last, since, limit = size, time.monotonic(), self.seconds_for_one
                elif time.monotonic() - since > limit:
                    process.kill()
                    process.wait()
                    return True
