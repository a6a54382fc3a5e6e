"""The JSON report and the HTML page of a run."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from torch_tenon.reports import pages

from .baseline import Changes
from .case import CaseResult, Status
from .route import routes
from .summary import command_after_others, counts_by_kind, failures, made_by, pass_rate


def as_json(
    results: Sequence[CaseResult],
    changes: Changes,
    *,
    device: str,
    target: str | None,
    seconds: float,
) -> dict[str, Any]:
    """Everything that a run found, as JSON values."""
    kinds: dict[str, Any] = {}
    for kind, counts in counts_by_kind(results).items():
        kinds[kind] = {
            **{str(status): counts[status] for status in Status},
            "cases": counts.total(),
            "pass rate": pass_rate(counts),
            "made": made_by([result for result in results if result.case.kind == kind]),
        }
    return {
        "device": device,
        "target": target,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(seconds, 1),
        "kinds": kinds,
        "worse": changes.worse,
        "better": changes.better,
        "failures": [
            {"cases": group.cases, "reason": group.reason, "message": group.message}
            for group in failures(results)
        ],
        "results": [
            {
                **result.to_json(),
                "routes": routes(result.route),
                "command": result.case.command(device, target),
                **(
                    {"command_after_others": command_after_others(result, device, target)}
                    if result.after
                    else {}
                ),
            }
            for result in results
        ],
    }


def write_json(path: Path, report: dict[str, Any]) -> None:
    """Writes `report` to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def write_html(path: Path, report: dict[str, Any]) -> None:
    """Writes `report` as one page that needs nothing else: a table of entry by dtype."""
    slim = {**report, "results": [_slim(result) for result in report["results"]]}
    name = report["device"] + (f" ({report['target']})" if report["target"] else "")
    page = pages.render(
        f"Conformance of {name}", Path(__file__).parent, {"data": slim}, ("page.js",)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page)


def _slim(result: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of a case: of checks that passed only their names."""
    kind, rest = result["case"].split("/", 1)
    name, dtype = rest.rsplit("/", 1)
    slim: dict[str, Any] = {"k": kind, "n": name, "d": dtype, "s": result["status"]}
    slim["c"] = {
        check: value["status"] if value["status"] != "fail" else value
        for check, value in result["checks"].items()
    }
    slim["t"] = round(result["seconds"], 3)
    slim["i"] = [result["samples"], result["samples_available"]]
    names = {"r": "routes", "o": "notes", "w": "reason", "m": "message", "b": "made"}
    for short, long in names.items():
        if result[long]:
            slim[short] = result[long]
    if result["status"] not in ("pass", "not applicable"):
        slim["x"] = result["command"]
    return slim
