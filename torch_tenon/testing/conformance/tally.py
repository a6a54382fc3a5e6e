"""Keeps the result of each check while the samples of a case go by."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable

from .case import CheckResult, Status
from .comparison import Mismatch
from .route import Maker
from .sides import Outcome

# A call has returned before it has run: what it fails with shows itself where its result is read.
WHEN_READ = "when results are read or compared"


class Tally:
    """Runs checks sample by sample; after its first failure a check is not run again.

    `position(check, sample)` is called before each, so that a crash or a hang can be placed. `made`
    counts results as they are compared, by who computed them.
    """

    def __init__(
        self, names: Iterable[str], position: Callable[[str, str], None], made: Counter[Maker]
    ) -> None:
        self._results = {name: CheckResult() for name in names}
        self._position = position
        self._made = made

    def check(
        self,
        name: str,
        sample: str,
        summary: Callable[[], str],
        run: Callable[[], Outcome | None],
    ) -> None:
        """Runs `run`, which raises Mismatch on a failure and gives None where nothing applies."""
        result = self._results[name]
        if result.status is Status.FAIL:
            return
        self._position(name, sample)
        before = self._made.copy()
        try:
            outcome = run()
        except Mismatch as mismatch:
            result.status = Status.FAIL
            result.reason = mismatch.reason
            result.message = str(mismatch)[:2000]
            result.sample = summary()
            result.traceback = getattr(mismatch, "traceback", "")
        except Exception as error:
            # Neither the call raised nor what makes its inputs: show where it came from.
            result.status = Status.FAIL
            result.reason = f"raises {type(error).__name__} {WHEN_READ}"
            result.message = str(error)[:2000]
            result.sample = summary()
            result.traceback = traceback.format_exc()[-6000:]
        else:
            if outcome is None:
                return
            if outcome.error is None:
                result.status = Status.PASS
                result.compared += 1
            elif result.status is Status.NOT_APPLICABLE and not result.message:
                result.reason = "the CPU raises"
                result.message = f"{type(outcome.error).__name__}: {outcome.error}"[:500]
        finally:
            for maker, count in (self._made - before).items():
                result.made[str(maker)] = result.made.get(str(maker), 0) + count

    def results(self) -> dict[str, CheckResult]:
        """The result of each check, by name."""
        return self._results
