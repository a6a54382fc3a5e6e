"""What builders have done for this process."""

from __future__ import annotations

from torch_tenon import _C

STATES = ("seen", "waiting", "ready", "failed")  # as `WindowPlan::State` of the core has them


def plan_counts() -> dict[str, int]:
    """Windows that ran by a plan (`hits`) and by reference; structures, and how many of them have a
    plan that is waited for, is ready or failed."""
    runs = _C.window_runs()
    states = [run.state for run in runs]
    return {
        "hits": sum(run.by_plan for run in runs),
        "reference": sum(run.by_reference for run in runs),
        "structures": sum(run.number >= 0 for run in runs),
        **{name: states.count(k) for k, name in enumerate(STATES) if name != "seen"},
    }
