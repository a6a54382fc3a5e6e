"""What is kept of a long run: sums of everything, and a sample of the events."""

import time

import numpy as np
import pytest
import torch
from needs import plans

from torch_tenon.reports.profiler import collect, timeline
from torch_tenon.reports.profiler.collect import Collector, Kept, Piece
from torch_tenon.reports.profiler.log import ACTIVITIES, EVENT, Subjects
from torch_tenon.reports.profiler.summary import busy

from .long_run import HOUR, long_run


def events(count, begin=0, step=10, activity="kernel"):
    found = np.zeros(count, EVENT)
    found["begin"] = begin + step * np.arange(count)
    found["end"] = found["begin"] + step // 2
    found["activity"] = ACTIVITIES.index(activity)
    return found


def test_a_sample_is_bounded_and_spread_over_the_run():
    kept = Kept(most=1000)
    for k in range(500):
        kept.add(Piece(k, 1000 * k, 1000 * (k + 1), events(50, begin=1000 * k)))
    assert 500 <= kept.count <= 1000
    begins = kept.events()["begin"]
    assert len(begins) == kept.count and (np.diff(begins) >= 0).all()
    assert begins[0] == 0 and begins[-1] > 450_000
    gaps = np.diff(np.unique(begins // 1000))
    assert set(gaps.tolist()) == {kept.every}


def test_few_events_are_all_kept():
    kept = Kept(most=1000)
    kept.add(Piece(0, 0, 100, events(10)))
    assert kept.count == 10 and kept.every == 1


@plans
def test_the_sums_are_of_every_event(compiled):
    x = torch.ones(64, device="tenon")
    found = Collector(most_kept=10)
    for _ in range(50):
        (x * 2 + 1).sum().item()
    found.stop()
    assert found.total("wait").count >= 49
    assert found.total("kernel").count >= 49
    assert found.kept.count <= found.seen and found.lost == 0
    assert sum(found.own.values()) / 1e9 <= found.seconds()
    assert found.own["look_up"] >= 0


class Found:
    """A collector that has seen a stretch of events."""

    def __init__(self, count, length, every=1):
        self.begin, self.end, self.seen = 0, length, count
        self.kept = Kept()
        self.kept.every = every
        for k in range(100):
            piece = events(count // 100, begin=k * length // 100)
            self.kept.add(Piece(k, k * length // 100, (k + 1) * length // 100, piece))


def test_a_timeline_of_a_million_events_is_small():
    found = Found(1_000_000, 10_000_000)
    made = timeline.make(found, Subjects(), found.kept.events(), detail=20_000)
    assert made["shown"] <= 20_000 and made["of"] == 1_000_000
    begins = [e[2] for e in made["events"]]
    assert begins[0] < 100 and begins[-1] > 9_900
    shares = made["busy"][0]
    assert len(shares) == 1000 and all(abs(s - 0.5) < 0.02 for s in shares)
    assert not any(made["busy"][1])


def test_a_track_is_as_busy_where_only_a_part_is_kept():
    found = Found(100_000, 1_000_000, every=2)
    assert found.kept.count == 50_000
    made = timeline.make(found, Subjects(), found.kept.events(), detail=1000)
    shares = made["busy"][0]
    assert {s if s is None else round(s, 1) for s in shares} == {None, 0.5}
    assert abs(shares.count(None) - 500) < 20


@pytest.mark.slow
def test_a_run_of_an_hour_takes_bounded_memory():
    count, most = 4_000_000, 1 << 18
    found = long_run(count, most)
    assert found.seen == count == found.total(*ACTIVITIES).count
    kept = found.kept.events()
    assert len(kept) == found.kept.count <= most and kept.nbytes <= most * EVENT.itemsize
    assert kept["begin"][0] < found.begin + 0.01 * HOUR
    assert kept["begin"][-1] > found.begin + 0.99 * HOUR
    assert len(found.sums) < 1000


def test_lines_without_end_do_not_take_memory_without_end(monkeypatch):
    monkeypatch.setattr(collect, "_MOST_KEYS", 100)
    found = Collector(most_kept=10)
    found.stop()
    for k in range(50):
        some = events(20)
        some["line"] = 20 * k + np.arange(20)
        found.take_in(some, found.end)
    assert found.total("kernel").count == 1000 and len(found.sums) <= 101


def test_a_timeline_is_thinned_by_stretches_of_time():
    found = Found(1000, 10_000)
    made = timeline.make(found, Subjects(), found.kept.events(), detail=1000)
    thinned = timeline.thin(made, 100)
    assert thinned["shown"] == len(thinned["events"]) <= 100 and made["shown"] == 1000
    begins = [e[2] for e in thinned["events"]]
    assert begins[0] < 1 and begins[-1] > 9.8
    assert [thinned["names"][e[1]] for e in thinned["events"]] == [""] * len(begins)
    assert timeline.thin(made, 1000)["events"] == made["events"]


def test_busy_counts_what_overlaps_once():
    found = events(3, step=0)
    found["begin"], found["end"] = [0, 5, 100], [10, 20, 110]
    assert busy(found) == 30e-9


def test_memory_has_owners():
    from torch_tenon.reports.profiler.memory import Memory

    model = torch.nn.Linear(1024, 1024, bias=False).to("tenon")
    model(torch.ones(2, 1024, device="tenon")).sum().backward()
    torch.tenon.synchronize()
    kept = []  # tensors of a transformation, which have no memory of their own
    torch.func.grad(lambda x: (kept.append(x), x.sum())[1])(torch.ones(2, device="tenon"))
    found = Memory()
    found.look(time.time_ns())
    assert found.owners["parameters"] >= 1 << 22 and found.owners["gradients"] >= 1 << 22
    assert found.peak >= 1 << 23 and len(found.samples) == 1
