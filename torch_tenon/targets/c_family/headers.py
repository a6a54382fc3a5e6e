"""What stands before a kernel's source: scalar functions, which every dialect understands once its
names are there."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"
# What kernels read beside scalar.h when they name one of its functions, in this order.
BY_NAME = {
    "fmod.h": ("fmod_f64", "remainder_f64"),
    "log.h": ("erfc_f32", "erfinv_", "lgamma_", "digamma_", "special_"),
    "erf.h": ("erfc_f32", "erfinv_", "special_"),
    "gamma.h": ("lgamma_", "digamma_", "special_"),
    "special.h": ("special_",),
    "special_f32.h": ("special_",),
    "bessel.h": ("special_bessel_", "special_airy_"),
    "random.h": ("random_",),
}


@functools.cache
def template(path: Path) -> str:
    """The text of a file."""
    return path.read_text()


def headers(source: str, dialect: Path, more: Sequence[str] = ()) -> list[str]:
    """What belongs before `source`: names.h of a dialect's folder, scalar.h, what has the functions
    that the source names, and the folder's kernel.h and `more`."""
    named = [f for f, names in BY_NAME.items() if any(name in source for name in names)]
    return [
        template(dialect / "names.h"),
        *(template(TEMPLATES / f) for f in ("scalar.h", *named)),
        *(template(dialect / f) for f in ("kernel.h", *more)),
    ]
