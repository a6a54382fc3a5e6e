"""What a process of the suite writes down, a line before each node and one after it.

Whoever reads the lines of a process that died knows which node it died in.
"""

import json
import zlib
from pathlib import Path

# Variables that say what a process does: the suite's name; the file of its lines; which share of
# the nodes is its own, and of how many nodes one runs ("0/2/1"); a file with the nodes to run, one
# a line (not set: all).
SUITE = "TENON_OTHERS_SUITE"
LINES = "TENON_OTHERS_LINES"
SHARE = "TENON_OTHERS_SHARE"
NODES = "TENON_OTHERS_NODES"

# What a line says beside pytest's "passed", "failed" and "skipped".
BEGUN = "begun"
CRASHED = "crashed"
HUNG = "hung"
FINISHED = "finished"


def place(node: str) -> int:
    """A number that tells a node's share and its turn: the same in each process and each run, and
    as good as drawn by chance, so that the part of a run that is done is a sample of the whole."""
    return zlib.crc32(node.encode())


def append(path: Path, node: str, outcome: str, why: str = "") -> None:
    """Writes a line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"node": node, "outcome": outcome, "why": why}) + "\n")


def read(path: Path) -> list[dict[str, str]]:
    """The lines of a file; one that a process has left half written is none."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]
