"""What the builder makes first, and what it tells of its pace."""

from __future__ import annotations

import gc
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from torch_tenon.builder import server
from torch_tenon.builder.answer import Answer
from torch_tenon.builder.server import ALL, HEADER, Client, Pace, Server


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Server]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        yield Server(listener)


def client(builder: Server) -> tuple[Client, socket.socket]:
    ours, theirs = socket.socketpair()
    found = Client(theirs)
    builder.clients.add(found)
    return found, ours


def first(builder: Server) -> bytes:
    return max(builder.waiting, key=builder.value)


def test_what_saves_most_for_its_size_comes_first(builder: Server) -> None:
    one, _ = client(builder)
    builder.take(one, 0, 1.0, b"a" * 100)
    builder.take(one, 1, 1.5, b"b" * 300)
    assert first(builder) == b"a" * 100
    builder.take(one, 1, 4.0, b"")  # news
    assert first(builder) == b"b" * 300


def test_several_processes_that_wait_for_the_same_count_together(builder: Server) -> None:
    one, _ = client(builder)
    other, _ = client(builder)
    builder.take(one, 0, 3.0, b"a" * 100)
    builder.take(one, 1, 2.0, b"b" * 100)
    builder.take(other, 7, 2.0, b"b" * 100)
    assert first(builder) == b"b" * 100


def test_processes_that_are_still_there_come_first(builder: Server) -> None:
    one, _ = client(builder)
    gone, _ = client(builder)
    builder.take(one, 0, 1.0, b"a" * 100)
    builder.take(gone, 0, 9.0, b"b" * 100)
    builder.clients.remove(gone)
    assert first(builder) == b"a" * 100


def test_news_of_a_window_that_nobody_asked_for_is_nothing(builder: Server) -> None:
    one, _ = client(builder)
    builder.take(one, 3, 1.0, b"")
    assert not builder.waiting


def test_who_waits_for_everything_is_told_when_nothing_is_left(
    builder: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, ours = client(builder)
    builder.take(one, ALL, 0.0, b"")
    monkeypatch.setattr(server, "LINGER", -1.0)
    # That one is for a process of its own: its import has this one look for plans in files.
    work = SimpleNamespace(collect_garbage=gc.collect, make=None)
    monkeypatch.setitem(sys.modules, "torch_tenon.builder.work", work)
    builder.last = 0.0  # it does not wait for a first one
    builder.run()
    assert HEADER.unpack(ours.recv(HEADER.size))[0] == ALL


def test_a_first_request_comes_before_what_is_done_ahead(
    builder: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copying the memory that it shares takes as long as a plan."""
    done = []

    def make(structure: bytes, pace: Pace) -> Answer:
        done.append(structure)
        asks.shutdown(socket.SHUT_WR)  # it has what it wanted
        return Answer.KEPT

    monkeypatch.setattr(server, "LINGER", 0.5)
    work = SimpleNamespace(collect_garbage=gc.collect, make=make)
    monkeypatch.setitem(sys.modules, "torch_tenon.builder.work", work)
    builder.chores = [lambda: done.append("chore")]
    builder.last = time.monotonic()
    with socket.socket(socket.AF_UNIX) as asks:
        asks.connect(builder.listener.getsockname())
        asks.send(HEADER.pack(1, 3, 0.5) + b"abc")
        builder.run()
        assert done == [b"abc", "chore"]
        assert HEADER.unpack(asks.recv(HEADER.size))[:2] == (1, Answer.KEPT)


def test_requests_arrive_in_pieces(builder: Server) -> None:
    one, _ = client(builder)
    data = HEADER.pack(5, 3, 0.25) + b"abc" + HEADER.pack(5, 0, 0.5)
    one.received += data[:10]
    assert one.requests() == []
    one.received += data[10:]
    assert one.requests() == [(5, 0.25, b"abc"), (5, 0.5, b"")]


def test_the_pace_is_that_of_the_last_plans() -> None:
    pace = Pace()
    assert pace.seconds_per_call == 0
    pace.note(10.0, 10)
    for _ in range(100):
        pace.note(0.24, 20)
    assert pace.seconds_per_call == pytest.approx(0.01, rel=0.1)
