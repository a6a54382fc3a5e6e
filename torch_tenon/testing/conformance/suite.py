"""Runs one case through PyTorch's device-generic test machinery.

The tests below are templates as PyTorch's own are: `@ops`, `@modules` and `@optims` parametrise
them over the databases, `instantiate_device_type_tests` makes the classes for the device. A class
is made for one entry of a database when its first case is run.
"""

from __future__ import annotations

import copy
import time
import unittest
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.testing._internal import common_device_type as machinery
from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_modules import TrainEvalMode, modules
from torch.testing._internal.common_optimizers import optims
from torch.testing._internal.common_utils import TestCase

from torch_tenon import config
from torch_tenon.targets import BUILT_IN

from .case import Case, CaseResult, CheckResult, Status
from .comparison import Comparison
from .databases import dtypes_of, list_cases, module_infos, op_infos, optimizer_infos
from .module_checks import ModuleChecks
from .op_checks import OpChecks
from .optimizer_checks import OptimizerChecks
from .route import Planned, counted, planned_since, windows_run
from .sides import Sides
from .tolerance import tolerance

__all__ = ["Case", "list_cases", "prepare", "run_case"]


def prepare() -> None:
    """Builds the databases, which a process does once before it forks the ones that run cases."""
    op_infos(), module_infos(), optimizer_infos()


class Template(TestCase):
    """What the three templates share: how many samples, who is told, and the checks."""

    checks: Any = None
    limit = 0
    position: Callable[[str, str], None] = staticmethod(lambda check, sample: None)

    def comparison(self, device: str, info: Any, dtype: torch.dtype) -> Comparison:
        """Compares by `assertEqual` within the tolerance of this entry of the database."""
        self.precision, self.rel_tol = tolerance(info, dtype)
        return Comparison(device, self.assertEqual)


def run_case(
    case: Case,
    device: str,
    *,
    limit: int = 0,
    position: Callable[[str, str], None] = lambda check, sample: None,
) -> CaseResult:
    """Runs `case` on `device` against the CPU, in this process.

    `limit` is the number of samples of the database to run, 0 for all of them. `position` is told
    the check and the sample before each is run. A failure of the device is in the result, never
    raised.
    """
    began = time.perf_counter()
    test_class = _test_class(case.kind, case.name, device)
    names = [n for n in dir(test_class) if n.startswith("test_") and n.endswith(f"_{case.dtype}")]
    (name,) = names
    test = test_class(name)
    test.limit, test.position = limit, position
    outcome = unittest.TestResult()
    torch.manual_seed(0)
    counts = torch.device(device).type == "tenon"
    before = windows_run() if counts else {}
    with warnings.catch_warnings(), counted() as route:
        warnings.simplefilter("ignore")
        test.run(outcome)
    seconds = time.perf_counter() - began
    checks = test.checks
    planned = planned_since(before) if counts else Planned([], {})
    if outcome.errors or outcome.failures:
        text = (outcome.errors or outcome.failures)[0][1]
        lines = [line for line in text.strip().splitlines() if line.strip()]
        failed = CheckResult(
            Status.FAIL, reason="the check itself raises", message=lines[-1], traceback=text[-6000:]
        )
        results = {**(checks.tally.results() if checks else {}), "forward": failed}
    elif outcome.skipped:
        message = outcome.skipped[0][1]
        results = {"forward": CheckResult(reason="PyTorch skips it", message=message)}
    else:
        results = checks.tally.results()
    if planned.failed:
        results["plans"] = CheckResult(
            Status.FAIL, reason="no plan, for an error", message="\n".join(planned.failed)
        )
    return CaseResult.from_checks(
        case,
        results,
        seconds=seconds,
        route=dict(route),
        made={str(maker): n for maker, n in checks.sides.made.items()} if checks else {},
        on_host=_reasons(planned, checks.sides if checks else None),
        samples=checks.samples if checks else 0,
        samples_available=checks.samples_available if checks else 0,
        notes=sorted(checks.sides.notes)[:5] if checks else [],
    )


def _reasons(planned: Planned, sides: Sides | None) -> dict[str, list[str]]:
    """Why the host worked, and for which ops: in plans, in their place, and apart from them."""
    reasons = dict(planned.on_host)
    if sides is None:
        return reasons
    found = [*sides.at_once.items(), *([] if reasons else sides.in_windows.items())]
    for why, names in found:
        reasons[why] = [*reasons.get(why, []), *names]
    return reasons


@cache
def _test_class(kind: str, name: str, device: str) -> Any:
    """The test class of one entry of a database for the device type `device`."""
    dtypes = dtypes_of(kind, name)
    scope: dict[str, Any] = {}
    if kind == "ops":

        class TestConformanceOps(Template):
            @ops([op_infos()[name]], dtypes=dtypes)
            def test(self, device: str, dtype: torch.dtype, op: Any) -> None:
                self.checks = OpChecks(
                    op,
                    dtype,
                    device,
                    self.comparison(device, op, dtype),
                    limit=self.limit,
                    long=written_here(device),
                    position=self.position,
                )
                self.checks.run()

        generic: Any = TestConformanceOps
    elif kind == "modules":
        info = _with_dtypes(module_infos()[name], dtypes)

        class TestConformanceModules(Template):
            @modules([info], train_eval_mode=TrainEvalMode.train_only)
            def test(
                self, device: str, dtype: torch.dtype, module_info: Any, training: bool
            ) -> None:
                self.checks = ModuleChecks(
                    module_info,
                    dtype,
                    device,
                    self.comparison(device, module_info, dtype),
                    limit=self.limit,
                    position=self.position,
                )
                self.checks.run()

        generic = TestConformanceModules
    else:

        class TestConformanceOptimizers(Template):
            @optims([optimizer_infos()[name]], dtypes=dtypes)
            def test(self, device: str, dtype: torch.dtype, optim_info: Any) -> None:
                self.checks = OptimizerChecks(
                    optim_info,
                    dtype,
                    device,
                    self.comparison(device, optim_info, dtype),
                    limit=self.limit,
                    position=self.position,
                )
                self.checks.run()

        generic = TestConformanceOptimizers
    scope[generic.__name__] = generic
    _make_known(device)
    instantiate_device_type_tests(
        generic, scope, only_for=(device,), allow_mps=device == "mps", allow_xpu=device == "xpu"
    )
    (test_class,) = scope.values()
    # Entries that PyTorch restricts to one device are run here wherever the CPU runs them.
    test_class.bypass_device_restrictions = True
    test_class.setUpClass()
    return test_class


def written_here(device: str) -> bool:
    """Whether somebody is writing the target behind the device, rather than that it is built in."""
    return torch.device(device).type == "tenon" and config.TARGET.read() not in BUILT_IN


def _with_dtypes(info: Any, dtypes: list[torch.dtype]) -> Any:
    info = copy.copy(info)
    info.dtypes = tuple(dtypes)
    return info


def _make_known(device: str) -> None:
    """Gives `device` a base class where PyTorch has none for it."""
    bases = machinery.device_type_test_bases
    names = {base.device_type for base in bases} | {"mps", "xpu"}
    if "privateuse1" in names:
        names.add(torch._C._get_privateuse1_backend_name())
    if device not in names:
        base = type("OtherTestBase", (machinery.DeviceTypeTestBase,), {"device_type": device})
        bases.append(base)
