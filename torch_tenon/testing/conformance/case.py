"""What is run and what comes of it: plain data that survives a pipe and a JSON file."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from torch_tenon import config

KINDS = ("ops", "modules", "optimizers")


class Status(StrEnum):
    """How a case, or one check of it, ended."""

    PASS = "pass"
    FAIL = "fail"
    CRASH = "crash"
    HANG = "hang"
    NOT_APPLICABLE = "not applicable"


# From best to worst; a case that moves to the right of its baseline got worse.
SEVERITY = {
    Status.PASS: 0,
    Status.NOT_APPLICABLE: 1,
    Status.FAIL: 2,
    Status.HANG: 3,
    Status.CRASH: 4,
}


# Checks that are reported but do not decide whether a case passes.
INFORMATIVE = frozenset({"errors"})


# Settings that change no result.
_NOT_OF_A_CASE = (config.CACHE_DIR, config.CACHE_LIMIT, config.LOG)


@dataclass(frozen=True, order=True)
class Case:
    """One entry of one of PyTorch's databases with one dtype: the unit of the count."""

    kind: str
    name: str
    dtype: str

    @property
    def id(self) -> str:
        """`kind/name/dtype`, the key of the baseline and of the JSON report."""
        return f"{self.kind}/{self.name}/{self.dtype}"

    @classmethod
    def from_id(cls, text: str) -> Case:
        """The case whose `id` is `text`."""
        kind, rest = text.split("/", 1)
        name, dtype = rest.rsplit("/", 1)
        return cls(kind, name, dtype)

    def command(self, device: str, target: str | None = None, after: Sequence[Case] = ()) -> str:
        """The shell command that runs this case, with the settings of this process, and shows the
        traceback: alone, or after others of its kind in one process, in the order of the database.
        """
        where = f"--device {device}" + (f" --target {target}" if target else "")
        cases = [*(case for case in after if case.kind == self.kind), self]
        names, dtypes = (
            ",".join(dict.fromkeys(getattr(case, name) for case in cases))
            for name in ("name", "dtype")
        )
        what = f"--db {self.kind} --ops '{names}' --dtype {dtypes}"
        what += " --jobs 1" if len(cases) > 1 else ""
        found = (
            f"{setting.variable}={shlex.quote(os.environ[setting.variable])} "
            for setting in config.SETTINGS
            if setting.is_set() and setting not in _NOT_OF_A_CASE
        )
        return f"{''.join(found)}tenon conformance {where} {what} -v"


@dataclass
class CheckResult:
    """One check (`forward`, `backward`, ...) over all samples of a case.

    `reason` is a short category that is the same for like failures; `message` is the detail.
    `compared` counts the samples on which both sides were run, and `made` the results that were
    compared by who computed them (`route.Maker`).
    """

    status: Status = Status.NOT_APPLICABLE
    compared: int = 0
    reason: str = ""
    message: str = ""
    sample: str = ""
    traceback: str = ""
    made: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> CheckResult:
        """The inverse of `dataclasses.asdict`."""
        return cls(**{**value, "status": Status(value["status"])})


@dataclass
class CaseResult:
    """What came of a case. `samples` of `samples_available` inputs of the database were run.

    `made` counts the results that were compared by who computed them, over all checks. `on_host`
    says why the host had to work in plans, or in their place, and for which ops. `after` are the
    last cases that the same process had run before one that did not pass.
    """

    case: Case
    status: Status
    checks: dict[str, CheckResult] = field(default_factory=dict)
    reason: str = ""
    message: str = ""
    notes: list[str] = field(default_factory=list)
    route: dict[str, int] = field(default_factory=dict)
    made: dict[str, int] = field(default_factory=dict)
    on_host: dict[str, list[str]] = field(default_factory=dict)
    samples: int = 0
    samples_available: int = 0
    seconds: float = 0.0
    after: list[str] = field(default_factory=list)

    @classmethod
    def from_checks(cls, case: Case, checks: dict[str, CheckResult], **rest: Any) -> CaseResult:
        """A case passes when no check failed and at least one was made."""
        decisive = [check for name, check in checks.items() if name not in INFORMATIVE]
        failed = [check for check in decisive if check.status is Status.FAIL]
        if failed:
            return cls(case, Status.FAIL, checks, failed[0].reason, failed[0].message, **rest)
        if any(check.status is Status.PASS for check in decisive):
            return cls(case, Status.PASS, checks, **rest)
        first = next(iter(decisive), CheckResult(message="the database has no inputs"))
        return cls(case, Status.NOT_APPLICABLE, checks, first.reason, first.message, **rest)

    @property
    def failed_checks(self) -> list[str]:
        """Names of the decisive checks that failed, in the order in which they ran."""
        return [
            name
            for name, check in self.checks.items()
            if check.status is Status.FAIL and name not in INFORMATIVE
        ]

    def to_json(self) -> dict[str, Any]:
        """This result as JSON values."""
        value = dataclasses.asdict(self)
        value["case"] = self.case.id
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> CaseResult:
        """The inverse of `to_json`."""
        return cls(
            **{
                **value,
                "case": Case.from_id(value["case"]),
                "status": Status(value["status"]),
                "checks": {k: CheckResult.from_json(v) for k, v in value["checks"].items()},
            }
        )
