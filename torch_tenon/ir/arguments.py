"""Arguments of ops as keys: which two are the same one."""

from __future__ import annotations

from typing import Any


def key_of(x: Any) -> Any:
    """What is equal for the same arguments alone.

    To Python 1, 1.0 and True are equal, as are 0.0 and -0.0; to an op they are not. A NaN is the
    same as another.
    """
    if isinstance(x, list | tuple):
        return (list, *map(key_of, x))
    if isinstance(x, dict):
        return (dict, *((k, key_of(v)) for k, v in sorted(x.items())))
    if isinstance(x, slice):
        return (slice, key_of(x.start), key_of(x.stop), key_of(x.step))
    if isinstance(x, float):
        return (float, x.hex())
    if isinstance(x, complex):
        return (complex, x.real.hex(), x.imag.hex())
    return (type(x), x)
