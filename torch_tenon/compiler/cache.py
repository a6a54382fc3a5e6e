"""Files that outlive a process: compiled objects and tuning results, each written whole or not.

An entry is a file named after the hash of everything that its contents depend on. What cannot be
read, or does not match its own digest, is rebuilt. A directory that cannot be written (a full disk,
no permission) is reported once and then done without; now and then it is tried again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

log = logging.getLogger("torch_tenon.cache")

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 600.0  # seconds without it; twice as many after each failure

KINDS = {
    ".so": "compiled objects",
    ".o": "parts of exported programs",
    ".bin": "compiled programs",
    ".json": "entries",
    ".c": "sources",
}

# What is written before it gets its name, here and in csrc/runtime/archive.cpp.
_UNFINISHED = re.compile(r"^\.new-|\.\d+\.\d+$")
_ABANDONED = 3600.0  # seconds after which nobody writes on
_FORGOTTEN = 30 * 86400.0
_DIGEST = 40  # letters


def digest(*parts: str | bytes) -> str:
    """A hexadecimal name for these contents."""
    h = hashlib.sha256()
    for p in parts:
        data = p.encode() if isinstance(p, str) else p
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()[:_DIGEST]


class Cache:
    """A directory of the user's own (created with mode 0700).

    Raises PermissionError when the directory belongs to somebody else or others may write to it:
    what is loaded from it runs as the user.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.has_failed = False  # ever
        self._failures = 0  # since it was last written
        self._tries_from = 0.0  # when it is tried again
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._give_up(error)
            return
        status = directory.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise PermissionError(
                f"cache directory {directory} must be yours alone: "
                f"owner {status.st_uid}, mode {status.st_mode & 0o777:o}; choose another"
            )

    @property
    def broken(self) -> bool:
        """Whether it is done without for now."""
        return time.monotonic() < self._tries_from

    def path(self, name: str) -> Path:
        """Where the entry of that name lies, if it exists."""
        return self.directory / name

    def read(self, name: str) -> bytes | None:
        """The contents of an entry, None where there is none or it cannot be read."""
        try:
            return self.path(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._give_up(error)
            return None

    def write(self, name: str, data: bytes) -> Path | None:
        """Stores an entry under its final name once it is complete; None if that is impossible."""
        if self.broken:
            return None
        temporary = None
        try:
            handle, temporary = tempfile.mkstemp(dir=self.directory, prefix=".new-")
            with os.fdopen(handle, "wb") as f:
                f.write(data)
            os.replace(temporary, self.path(name))
        except OSError as error:
            if temporary is not None and os.path.exists(temporary):
                os.unlink(temporary)
            self._give_up(error)
            return None
        self._failures = 0
        return self.path(name)

    def read_checked(self, name: str) -> bytes | None:
        """What `write_checked` has stored, or None; a damaged entry is removed."""
        data = self.read(name)
        if data is None:
            return None
        body = data[_DIGEST:]
        if data[:_DIGEST] == digest(body).encode():
            return body
        self._damaged(name)
        return None

    def write_checked(self, name: str, data: bytes) -> None:
        """Stores an entry behind its digest."""
        self.write(name, digest(data).encode() + data)

    def read_json(self, name: str) -> Any:
        """A JSON entry with a valid digest, or None; a damaged one is removed."""
        data = self.read(name)
        if data is None:
            return None
        try:
            entry = json.loads(data)
            body = entry["body"]
            if entry["digest"] == digest(json.dumps(body, sort_keys=True)):
                return body
        except (ValueError, KeyError, TypeError):
            pass  # falls through to the removal: damaged in a way that JSON notices
        self._damaged(name)
        return None

    def write_json(self, name: str, body: Any) -> None:
        """Stores a JSON entry with its digest."""
        text = json.dumps(body, sort_keys=True)
        self.write(name, json.dumps({"body": body, "digest": digest(text)}).encode())

    def remove(self, name: str) -> None:
        """Deletes an entry; it need not exist."""
        self.path(name).unlink(missing_ok=True)

    def _damaged(self, name: str) -> None:
        log.warning("cache entry %s is damaged and will be rebuilt", self.path(name))
        self.remove(name)

    def _give_up(self, error: OSError) -> None:
        if self._failures == 0:
            log.warning("going on without the cache in %s: %s", self.directory, error)
        pause = min(_FIRST_PAUSE * 2**self._failures, _LONGEST_PAUSE)
        self._failures += 1
        self.has_failed = True
        self._tries_from = time.monotonic() + pause


def contents(directory: Path) -> dict[str, tuple[int, int]]:
    """What lies under a cache directory: how many files of each kind, and their bytes."""
    found: dict[str, tuple[int, int]] = {}
    for path, status in _files(directory):
        kind = KINDS.get(path.suffix, "other")
        if path.name.startswith("mm-"):
            kind = "tuning results"
        files, nbytes = found.get(kind, (0, 0))
        found[kind] = (files + 1, nbytes + status.st_size)
    return found


def remove_all(directory: Path) -> None:
    """Empties a cache directory; it stays. Other processes may write there meanwhile."""
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def trim(directory: Path, limit: int) -> int:
    """Lets go of what was used least recently in a cache directory that holds more than `limit`
    bytes, until three quarters of that are left, and of files that nobody writes on; gives the
    bytes. What a process has loaded stays loaded; another one makes it anew.

    When a file was used last the system knows, to a day or so; where it does not note that, when it
    was written.
    """
    now = time.time()
    kept, freed = [], 0
    for path, status in _files(directory):
        used = max(status.st_atime, status.st_mtime)
        if _UNFINISHED.search(path.name) and now - status.st_mtime > _ABANDONED:
            freed += _remove(path, status.st_size)
        elif path.parent != directory or now - used > _FORGOTTEN:  # there lie sockets and locks
            kept.append((used, status.st_size, path))
    total = sum(size for _, size, _ in kept)
    if total <= limit:
        return freed
    for _, size, path in sorted(kept):
        freed += _remove(path, size)
        total -= size
        if total <= limit * 3 // 4:
            break
    return freed


def _files(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The files under a directory that are still there when they are looked at."""
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder) / name
            with contextlib.suppress(OSError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    yield path, status


def _remove(path: Path, size: int) -> int:
    try:
        path.unlink()
    except OSError as error:
        log.debug("%s stays: %s", path, error)
        return 0
    return size
