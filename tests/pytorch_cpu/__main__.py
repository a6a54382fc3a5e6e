"""PyTorch's own tests of CPU tensors, with torch-tenon installed and without.

    python -m tests.pytorch_cpu FOLDER [FILE ...]

FOLDER is a checkout of PyTorch, of this release or one near it. Files of its folder `test` run
twice, as they are; without means TORCH_DEVICE_BACKEND_AUTOLOAD=0. A test that ends otherwise runs
once more each way; if it still does, it is printed and the exit status is 1. A crash or ten minutes
end one test, not the run.
"""

from __future__ import annotations

import argparse
import collections
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.pytorch_cpu import recorder

ROOT = Path(__file__).parents[2]
FILES = ("test_view_ops.py", "test_indexing.py", "test_autograd.py", "test_serialization.py")
SECONDS = 600  # for a test
FINISHED = (0, 1, 5)  # pytest's exit status when all, not all, and no tests passed

Outcomes = dict[str, str]


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a checkout of PyTorch")
    parser.add_argument("files", nargs="*", default=FILES, help=f"default: {' '.join(FILES)}")
    arguments = parser.parse_args()
    paths = [(arguments.folder / "test" / name).resolve() for name in arguments.files]
    for path in paths:
        if not path.is_file():
            parser.error(f"{path} is not there")
    count = sum(compare(path) for path in paths)
    print(f"{count} tests differ" if count else "the same")
    return 1 if count else 0


def compare(path: Path) -> int:
    """Runs a file with and without, prints how its tests end, returns how many end otherwise."""
    without, with_it = outcomes(path, installed=False), outcomes(path, installed=True)
    doubtful = [test for test, _, _ in differences(without, with_it)]
    if doubtful:
        without |= outcomes(path, False, doubtful)
        with_it |= outcomes(path, True, doubtful)
    for label, found in (("without", without), ("with", with_it)):
        counts = sorted(collections.Counter(found.values()).items())
        print(f"{path.name} {label}:", ", ".join(f"{n} {how}" for how, n in counts), flush=True)
    found = differences(without, with_it)
    for test, before, after in found:
        print(f"  {test}: {before} without, {after} with", flush=True)
    return len(found)


def differences(without: Outcomes, with_it: Outcomes) -> list[tuple[str, str, str]]:
    """The tests that end otherwise, and how; one that only one run has is missing in the other."""
    pairs = ((t, without.get(t, "missing"), with_it.get(t, "missing")) for t in without | with_it)
    return sorted(pair for pair in pairs if pair[1] != pair[2])


def outcomes(path: Path, installed: bool, only: list[str] | None = None) -> Outcomes:
    """How each test of a file ends: passed, failed, skipped, or crashed with its process.

    Raises RuntimeError where the file cannot be run.
    """
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record"
        record.touch()
        environment = {
            **os.environ,
            "TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(installed)),
            "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu",  # what is for any device is for the CPU
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            recorder.RECORD: str(record),
            recorder.ONLY: "" if only is None else str(Path(folder) / "only"),
        }
        if only is not None:
            (Path(folder) / "only").write_text("\n".join(only))
        finished = False
        while not finished:
            before = record.stat().st_size
            done = _run(path, environment)
            finished = done.returncode in FINISHED
            if not finished and record.stat().st_size == before:
                raise RuntimeError(f"{path} does not run:\n{done.stdout}{done.stderr}")
        return recorder.read(record)


def _run(path: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", recorder.__name__]
    # Of the checkout's settings for pytest some are for plugins of its own.
    command += ["-c", os.devnull, "--rootdir", str(path.parent), "--noconftest"]
    command += ["-p", "no:cacheprovider", "--timeout", str(SECONDS), "--timeout-method", "thread"]
    return subprocess.run(
        [*command, str(path)],
        cwd=path.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
