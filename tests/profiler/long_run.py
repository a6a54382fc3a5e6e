"""The profile of a run that took an hour, without the hour: real events, again and again."""

import numpy as np
import torch

from torch_tenon import _C
from torch_tenon.reports.profiler import collect, log, page
from torch_tenon.reports.profiler.collect import Collector
from torch_tenon.reports.profiler.summary import summarise

HOUR = 3600 * 10**9  # nanoseconds


def real_events():
    """The events of a few steps of training, from one Python line or another."""
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 4))
    model.to("tenon")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    traced = _C.traces_calls()
    _C.set_trace_calls(True)
    found = _C.ProfileLog(1 << 16)
    for _ in range(10):
        loss = model(torch.randn(8, 32).to("tenon")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
    torch.tenon.synchronize()
    found.stop()
    _C.set_trace_calls(traced)
    return log.take(found)


def long_run(count, most_kept, length=HOUR, each=4000):
    """A collector that has seen so many events, of a run of that length in nanoseconds."""
    real = real_events()
    found = Collector(most_kept)
    found.stop()
    found._looked = found.begin
    to_come = count - found.seen  # beside the waits of that stop
    for k in range(-(-to_come // each)):
        events = np.resize(real, min(each, to_come - k * each)).copy()
        took = events["end"] - events["begin"]
        step = length // count
        events["begin"] = found.begin + step * (k * each + np.arange(len(events)))
        events["end"] = events["begin"] + np.minimum(took, 4 * step)
        found.take_in(events, int(events["end"].max()))
    found.end = found.begin + length
    return found


def profile_of(count, most_kept, **how):
    """The profile of such a run."""
    return summarise(long_run(count, most_kept, **how), ["train.py"], 0)


def page_of(count):
    """Prints the page of such a run."""
    print(page.render(profile_of(count, collect.MOST_KEPT)))
