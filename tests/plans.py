"""What is known of the plans that this process has."""

from __future__ import annotations

from torch_tenon import _C
from torch_tenon.compiler.explain import Summary


def plans_made() -> int:
    """How many there are."""
    return sum(bool(window.facts) for window in _C.window_runs())


def last_plan() -> Summary:
    """The one of the window whose structure is the newest."""
    facts = [window.facts for window in _C.window_runs() if window.facts][-1]
    found = Summary.of_json(facts)
    assert found is not None
    return found
