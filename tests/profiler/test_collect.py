"""What is kept of a long run: sums of everything, and a sample of the events."""

import time

import numpy as np
import torch

from torch_tenon.profiler import timeline
from torch_tenon.profiler.collect import Collector, Kept
from torch_tenon.profiler.log import ACTIVITIES, EVENT, Subjects
from torch_tenon.profiler.summary import busy


def events(count, begin=0, step=10, activity="kernel"):
    found = np.zeros(count, EVENT)
    found["begin"] = begin + step * np.arange(count)
    found["end"] = found["begin"] + step // 2
    found["activity"] = ACTIVITIES.index(activity)
    return found


def test_a_sample_is_bounded_and_spread_over_the_run():
    kept = Kept(most=1000)
    for k in range(500):
        kept.add(k, events(50, begin=1000 * k))
    assert 500 <= kept.count <= 1000
    begins = kept.events()["begin"]
    assert len(begins) == kept.count and (np.diff(begins) >= 0).all()
    assert begins[0] == 0 and begins[-1] > 450_000
    gaps = np.diff(np.unique(begins // 1000))
    assert set(gaps.tolist()) == {kept.every}


def test_few_events_are_all_kept():
    kept = Kept(most=1000)
    kept.add(0, events(10))
    assert kept.count == 10 and kept.every == 1


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


def test_a_timeline_of_a_million_events_is_small():
    class Found:
        begin, end, seen = 0, 10_000_000, 1_000_000

    made = timeline.make(Found(), Subjects(), events(1_000_000), detail=20_000)
    assert made["shown"] <= 20_000 and made["of"] == 1_000_000
    begins = [e[2] for e in made["events"]]
    assert begins[0] < 100 and begins[-1] > 9_900
    shares = made["busy"][0]
    assert len(shares) == 1000 and all(abs(s - 0.5) < 0.02 for s in shares)
    assert not any(made["busy"][1])


def test_busy_counts_what_overlaps_once():
    found = events(3, step=0)
    found["begin"], found["end"] = [0, 5, 100], [10, 20, 110]
    assert busy(found) == 30e-9


def test_memory_has_owners():
    from torch_tenon.profiler.memory import Memory

    model = torch.nn.Linear(1024, 1024, bias=False).to("tenon")
    model(torch.ones(2, 1024, device="tenon")).sum().backward()
    torch.tenon.synchronize()
    found = Memory()
    found.look(time.time_ns())
    assert found.owners["parameters"] >= 1 << 22 and found.owners["gradients"] >= 1 << 22
    assert found.peak >= 1 << 23 and len(found.samples) == 1
