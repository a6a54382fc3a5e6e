"""The memory that a fork left shared with the program, made this process's own.

What either of two processes writes of such memory is copied by the one that writes first. At its
end a program writes nearly all of it: it destroys what PyTorch's import has made. A tenth of a
second of copying then delayed the end of each program whose builder was at work. So the builder
copies, while a processor is idle.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
from pathlib import Path

POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, of Linux 5.14
# Of a page's entry in `pagemap`: it is in memory; it is a file's or shared on purpose.
_PRESENT, _OF_FILE = 1 << 63, 1 << 61
_ENTRY = 8  # bytes
MOST_BYTES = 1 << 36  # of a mapping: larger ones are reservations


def own_memory() -> int:
    """Copies the pages that are in memory and may be written; gives how many there are, 0 where
    the system does not tell or cannot."""
    size = resource.getpagesize()
    madvise = ctypes.CDLL(None).madvise
    count = 0
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
        pages = os.open("/proc/self/pagemap", os.O_RDONLY)
    except OSError:
        return 0
    try:
        for line in lines:
            between, may, *_ = line.split(maxsplit=2)
            first, last = (int(address, 16) for address in between.split("-"))
            if may != "rw-p" or line.endswith("[stack]") or last - first > MOST_BYTES:
                continue
            entries = os.pread(pages, (last - first) // size * _ENTRY, first // size * _ENTRY)
            states = bytes(
                bool(entry & _PRESENT and not entry & _OF_FILE)
                for entry in memoryview(entries).cast("Q")
            )
            for run in re.finditer(b"\1+", states):
                start, length = first + run.start() * size, (run.end() - run.start()) * size
                if madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), POPULATE_WRITE) != 0:
                    return count  # the pages are copied when they are written
                count += run.end() - run.start()
    except OSError:
        pass
    finally:
        os.close(pages)
    return count
