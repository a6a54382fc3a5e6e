"""One file for each family of ops; `load_all` fills the table."""

from __future__ import annotations

import functools
import importlib

FAMILIES = (
    "pointwise",
    "activations",
    "copies",
    "complex_numbers",
    "complex_functions",
    "views",
    "creation",
    "random",
    "reductions",
    "softmax",
    "losses",
    "normalization",
    "indexing",
    "scatters",
    "search",
    "bags",
    "grid",
    "pooling",
    "windows",
    "linear",
    "convolution",
    "images",
    "lists",
    "library",
)


@functools.cache
def load_all() -> None:
    """Imports every family, which enters its lowerings."""
    for family in FAMILIES:
        importlib.import_module(f"torch_tenon.ops.lowerings.{family}")
