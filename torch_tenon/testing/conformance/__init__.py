"""PyTorch's own databases, run on a device against the CPU.

The way of a case: `databases` lists it, `pool` gives it to a `worker`, `suite` runs it through
PyTorch's device-generic machinery with the checks of `op_checks`, `module_checks` or
`optimizer_checks`; `placement` copies its inputs, `sides` runs both devices, `comparison` and
`randomness` judge; `baseline`, `summary` and `report` say what came of it.
"""

from .case import Case, CaseResult, CheckResult, Status

__all__ = ["Case", "CaseResult", "CheckResult", "Status"]
