"""The builder process: takes windows from the processes of one user, and makes files of plans.

It has low priority, and works on until what it was asked for is done, also when the process that
asked has ended: the next one of its kind finds the plans. It ends when nobody has been there for a
while, or when it has grown large and nobody waits. It may be killed at any time: the core starts
another one.

A request is a header (number of the window in the process that asks, bytes that follow: two 32-bit
numbers) and the window's structure; the answer is a header with 1 for a plan, or the reason why
there is none, that lies in a file now, and with 0 for neither.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import resource
import selectors
import socket
import struct
import time
from collections import OrderedDict
from dataclasses import dataclass, field

log = logging.getLogger("torch_tenon.program")

NICE = 10
LINGER = 20.0  # seconds without anybody
FIRST_WAIT = 60.0  # ... for the first one
MOST_BYTES = 2 << 30  # of memory, after which a fresh process is better
MOST_REQUEST = 64 << 20
HEADER = struct.Struct("=II")


@dataclass(eq=False)
class Client:
    """A process that asks."""

    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)

    def requests(self) -> list[tuple[int, bytes]]:
        """Those that have arrived as a whole. Raises ValueError where they are none."""
        found = []
        while len(self.received) >= HEADER.size:
            number, size = HEADER.unpack_from(self.received)
            if size > MOST_REQUEST:
                raise ValueError(f"a request of {size} bytes")
            if len(self.received) < HEADER.size + size:
                break
            found.append((number, bytes(self.received[HEADER.size : HEADER.size + size])))
            del self.received[: HEADER.size + size]
        return found

    def answer(self, number: int, kept: bool) -> None:
        """Tells what became of a window, if anybody is still there to hear it."""
        with contextlib.suppress(OSError):
            self.connection.send(HEADER.pack(number, int(kept)), socket.MSG_DONTWAIT)


class Server:
    """Requests by structure, in the order in which they came, and who waits for each."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)
        self.clients: set[Client] = set()
        self.waiting: OrderedDict[bytes, list[tuple[Client, int]]] = OrderedDict()
        self.last = time.monotonic() + FIRST_WAIT - LINGER

    def run(self) -> None:
        """Works until nobody has been there for a while."""
        from torch_tenon.builder.work import make

        while True:
            self._listen(0.0 if self.waiting else 1.0)
            if self.waiting:
                structure = next(iter(self.waiting))
                kept = make(structure)
                for client, number in self.waiting.pop(structure):
                    client.answer(number, kept)
            if self.clients or self.waiting:
                self.last = max(self.last, time.monotonic())
            alone = time.monotonic() - self.last
            if not self.waiting and (alone > LINGER or (not self.clients and _is_large())):
                return

    def _listen(self, timeout: float) -> None:
        for key, _ in self.selector.select(timeout):
            if key.fileobj is self.listener:
                connection, _ = self.listener.accept()
                client = Client(connection)
                self.clients.add(client)
                self.selector.register(connection, selectors.EVENT_READ, client)
            else:
                self._hear(key.data)

    def _hear(self, client: Client) -> None:
        try:
            received = client.connection.recv(1 << 16)
            client.received += received
            requests = client.requests()
        except (OSError, ValueError) as error:
            log.debug("a process that asks is gone: %s", error)
            received, requests = b"", []
        for number, structure in requests:
            self.waiting.setdefault(structure, []).append((client, number))
        if not received:
            self.clients.discard(client)
            self.selector.unregister(client.connection)
            client.connection.close()


def _is_large() -> bool:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > MOST_BYTES


def serve(path: str) -> None:
    """Listens at `path`, unless another builder does."""
    folder, name = os.path.split(path)
    os.chdir(folder)  # the path of a socket is short
    os.umask(0o077)
    lock = os.open(f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    with contextlib.suppress(OSError):
        os.nice(NICE)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    listener.listen(64)
    try:
        Server(listener).run()
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
