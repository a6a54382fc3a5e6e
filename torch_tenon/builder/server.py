"""The builder process: takes windows from the processes of one user, and makes files of plans.

It leaves the processors to the programs (`NICE`), and works on until what it was asked for is
done, also when the process that asked has ended: the next one of its kind finds the plans. It ends
when nobody has been there for a while, or when it has grown large and nobody waits. It may be
killed at any time: the core starts another one.

A request is a header (its number in the process that asks, bytes that follow: two 32-bit numbers;
seconds that the window's runs without a plan have taken: a real) and the window's structure.
Without a structure it is news of a window that was asked for, and with the number ALL somebody who
wants to hear when nothing is left to do. The answer is a header with 1 for a plan, or the reason
why there is none, that lies in a file now, with 2 for a failure that may pass (a disk that is full,
a compiler that was killed), and with 0 for neither; its seconds are those that a plan takes for
each call. An answer with the number ALIVE says only that the builder is ready, with nothing of its
own left to do, or that plans are still being made: a process that hears nothing for long takes the
builder for stopped.

Only processes of the builder's own user are heard: a structure names code, and a plan is run.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import resource
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch_tenon import config
from torch_tenon.builder.answer import Answer
from torch_tenon.builder.own_memory import own_memory
from torch_tenon.compiler.cache import trim

log = logging.getLogger("torch_tenon.program")

# A program that keeps all processors busy has nine tenths of them, and its loops do not wait long.
# With an equal share each loop of two threads waited for the builder's turn, and steps of an LSTM
# took six times as long. Where a processor is idle it makes no difference.
NICE = 10
LINGER = 20.0  # seconds without anybody
FIRST_WAIT = 60.0  # ... for the first one
MOST_BYTES = 2 << 30  # of memory, after which a fresh process is better
HEADER = struct.Struct("=IId")
ALL = 0xFFFFFFFF
# As csrc/pytorch/windows/builder.cpp has them.
CALLS_OF_PLAN = 4  # take as long as what each plan takes beside its calls
MOST_REQUEST = 64 << 20  # bytes
ALIVE = 0xFFFFFFFE
SIGN_OF_LIFE = 10.0  # seconds between two of them
PEER = struct.Struct("=iII")  # process, user and group at the other end of a socket
FADE = 0.9  # what a plan counts in the mean of the seconds for each call, once there is another one


@dataclass(eq=False)
class Client:
    """A process that asks."""

    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)
    told: float = -math.inf  # when it last heard that the builder works

    def requests(self) -> list[tuple[int, float, bytes]]:
        """Those that have arrived as a whole: number, seconds, structure. Raises ValueError where
        they are none."""
        found = []
        while len(self.received) >= HEADER.size:
            number, size, seconds = HEADER.unpack_from(self.received)
            if size > MOST_REQUEST:
                raise ValueError(f"a request of {size} bytes")
            if len(self.received) < HEADER.size + size:
                break
            structure = bytes(self.received[HEADER.size : HEADER.size + size])
            found.append((number, seconds, structure))
            del self.received[: HEADER.size + size]
        return found

    def answer(self, number: int, answer: int, seconds_per_call: float) -> None:
        """Tells what became of a window, if anybody is still there to hear it.

        A process that has not listened for so long that there is no room for more loses its
        connection, so that it asks again: an answer that is missing would be waited for in vain.
        """
        try:
            self.connection.send(HEADER.pack(number, answer, seconds_per_call), socket.MSG_DONTWAIT)
        except OSError:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def show_life(self) -> None:
        """Tells, at first and then now and then, that the builder is at work."""
        if time.monotonic() - self.told < SIGN_OF_LIFE:
            return
        self.told = time.monotonic()
        with contextlib.suppress(OSError):
            self.connection.send(HEADER.pack(ALIVE, 0, 0.0), socket.MSG_DONTWAIT)


class Pace:
    """What plans take on this machine, for each call of their windows."""

    def __init__(self) -> None:
        self.seconds = self.calls = 0.0

    def note(self, seconds: float, calls: int) -> None:
        """Adds a plan."""
        self.seconds = FADE * self.seconds + seconds
        self.calls = FADE * self.calls + calls + CALLS_OF_PLAN

    @property
    def seconds_per_call(self) -> float:
        """The mean, in which the last ones count most; 0 while there is none."""
        return self.seconds / self.calls if self.calls else 0.0


class Server:
    """Requests by structure, with who waits for each and what it costs each of them meanwhile.

    What is made next is what saves most for the work that it is: time that was spent without the
    plan, for each byte of the structure, and of processes that are still there first. `chores` are
    done once, while nobody waits.
    """

    def __init__(
        self, listener: socket.socket, chores: Sequence[Callable[[], object]] = ()
    ) -> None:
        self.listener, self.chores = listener, list(chores)
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)
        self.clients: set[Client] = set()
        self.waiting: dict[bytes, dict[tuple[Client, int], float]] = {}
        self.asked: dict[tuple[Client, int], bytes] = {}
        self.for_all: list[Client] = []  # who want to hear when nothing is left
        self.pace = Pace()
        self.last = time.monotonic() + FIRST_WAIT - LINGER

    def run(self) -> None:
        """Works until nobody has been there for a while."""
        from torch_tenon.builder.work import collect_garbage, make

        collect_garbage()
        while True:
            self._listen(0.0 if self.waiting or self.chores else 1.0)
            if self.chores and not self.waiting:
                self.chores.pop(0)()
                self._say_ready(self.clients)
                continue
            if self.waiting:
                structure = max(self.waiting, key=self.value)
                answer = make(structure, self.pace)
                for who in self.waiting.pop(structure):
                    self.asked.pop(who, None)
                    who[0].answer(who[1], answer, self.pace.seconds_per_call)
                for client in {client for client, _ in self.asked}:
                    client.show_life()
            while self.for_all and not self.waiting:
                self.for_all.pop().answer(ALL, Answer.KEPT, self.pace.seconds_per_call)
            if self.clients or self.waiting:
                self.last = max(self.last, time.monotonic())
            alone = time.monotonic() - self.last
            if not self.waiting and (alone > LINGER or (not self.clients and _is_large())):
                return

    def value(self, structure: bytes) -> tuple[bool, float]:
        """What is greatest for the plan that is to be made next."""
        waits = self.waiting[structure]
        return any(c in self.clients for c, _ in waits), sum(waits.values()) / len(structure)

    def take(self, client: Client, number: int, seconds: float, structure: bytes) -> None:
        """A request, or news of one."""
        who = client, number
        if number == ALL:
            self.for_all.append(client)
        elif structure:
            self.asked[who] = structure
            self.waiting.setdefault(structure, {})[who] = seconds
        elif who in self.asked:
            self.waiting[self.asked[who]][who] = seconds

    def _say_ready(self, clients: Iterable[Client]) -> None:
        """Tells that from now on the builder uses a processor for plans alone."""
        if not self.chores:
            for client in clients:
                client.show_life()

    def _listen(self, timeout: float) -> None:
        """Hears all that is there; who has connected may have asked already."""
        while ready := self.selector.select(timeout):
            for key, _ in ready:
                if key.fileobj is self.listener:
                    self._accept()
                else:
                    self._hear(key.data)
            timeout = 0.0

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        user = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))[
            1
        ]
        if user != os.getuid():
            log.warning("a process of user %d was turned away", user)
            connection.close()
            return
        client = Client(connection)
        self.clients.add(client)
        self.selector.register(connection, selectors.EVENT_READ, client)
        self._say_ready([client])

    def _hear(self, client: Client) -> None:
        try:
            received = client.connection.recv(1 << 16)
            client.received += received
            requests = client.requests()
        except (OSError, ValueError) as error:
            log.debug("a process that asks is gone: %s", error)
            received, requests = b"", []
        for number, seconds, structure in requests:
            self.take(client, number, seconds, structure)
        if not received:
            self.clients.discard(client)
            self.selector.unregister(client.connection)
            client.connection.close()


def _is_large() -> bool:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > MOST_BYTES


def serve(path: str, is_copy: bool = False) -> None:
    """Listens at `path`, unless another builder does, in a directory of this user's own; `is_copy`
    says that this process shares its memory with the program that it was copied from."""
    folder, name = os.path.split(path)
    os.chdir(folder)  # the path of a socket is short
    if problem := config.cache_problem("."):
        log.warning("no plans are made: %s", problem)
        return
    os.umask(0o077)
    lock = os.open(f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())  # for who looks for it
    with contextlib.suppress(OSError):
        os.nice(NICE)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    listener.listen(64)
    ours = os.stat(name).st_ino
    try:
        Server(listener, [own_memory] if is_copy else []).run()
    finally:
        # Where somebody has emptied the directory, another builder may listen there by now.
        with contextlib.suppress(FileNotFoundError):
            if os.stat(name).st_ino == ours:
                os.unlink(name)
    trim(Path(folder), config.CACHE_LIMIT.read())
