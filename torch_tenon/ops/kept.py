"""Facts about PyTorch's ops, kept in the cache directory: finding them out takes seconds."""

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_tenon import config
from torch_tenon.compiler.cache import Cache, digest
from torch_tenon.compiler.sources import sources


def kept(name: str, find_out: Callable[[], Any]) -> Any:
    """What `find_out` gives, as JSON has it (tuples are lists): from the file of that name, where
    PyTorch and this package are those that wrote it; there is one such file, of the last.

    Raises ConfigError where the cache directory is not the user's own.
    """
    files = Cache(Path(config.cache_directory()))
    key = digest(name, importlib.metadata.version("torch"), sources())
    entry = files.read_json(f"ops-{name}.json")
    if isinstance(entry, dict) and entry.get("key") == key:
        return entry["facts"]
    facts = find_out()
    files.write_json(f"ops-{name}.json", {"key": key, "facts": facts})
    return facts
