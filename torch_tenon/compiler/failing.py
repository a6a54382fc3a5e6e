"""Lowerings that fail: the op becomes a call, and the fault is counted and logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from torch_tenon import _C
from torch_tenon.ir.dtypes import NoLoops
from torch_tenon.ir.values import BodyError
from torch_tenon.ops.lowerings.table import CannotLower

log = logging.getLogger("torch_tenon.program")

_failed: set[str] = set()  # ops whose lowering has failed in this process


def why_not(op: str, error: BaseException, of_nothing: bool = False) -> str:
    """Why an op is a call, of the error that its lowering ended with. One that is no `CannotLower`
    is a fault of the lowering's: it is counted, and logged the first time. `of_nothing`: a tensor
    has no elements, by whose number a mean divides."""
    if isinstance(error, NoLoops):
        return str(error)
    if of_nothing and isinstance(error, ZeroDivisionError):
        return "a mean of nothing"
    _C.count("failed_lowering", op, 0)
    if op not in _failed:
        _failed.add(op)
        log.warning("the lowering of %s failed, which makes it a call: %r", op, error)
        log.debug("where it failed", exc_info=error)
    return f"its lowering failed: {error!r}"


Built = TypeVar("Built")


def without_failing(build: Callable[[Mapping[str, str]], Built]) -> Built:
    """What `build` makes of a program, given the ops that are refused and why: those whose bodies
    raise an error, which shows only where they are used. Raises CannotLower for a program that
    needs loops over a dtype that has none."""
    refused: dict[str, str] = {}
    while True:
        try:
            return build(refused)
        except BodyError as error:
            cause = error.__cause__
            if error.origin in refused or cause is None:
                raise
            refused[error.origin] = why_not(error.origin, cause)
        except NoLoops as error:  # to write a part of a tensor, say
            raise CannotLower(str(error)) from error
