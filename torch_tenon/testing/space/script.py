"""A failing call as a script that runs by itself and shows what differs."""

from __future__ import annotations

import json
from collections.abc import Sequence

from torch_tenon import config
from torch_tenon.testing.space.case import Case, Data
from torch_tenon.testing.space.running import MODES

_HEAD = """\
import os

os.environ |= {settings}
import torch

inf, nan = float("inf"), float("nan")
"""
_LOOP = """\
for calls in {turns}:
    for device in map(torch.device, ("cpu", "tenon")):
        arguments = [given(device) for given, _ in calls]
        for x, (_, compute) in zip(arguments, calls):
            try:
                got = {call}(device, *x)
{after}            except Exception as error:
                print(device, type(error).__name__, error, flush=True)
"""
_SHOW = """\
                print(device, got, *x, sep="\\n", flush=True)
"""
_SHOW_TOGETHER = """\
                x += [got]
            except Exception as error:
                print(device, type(error).__name__, error, flush=True)
        for x in arguments:
            try:
                print(device, *x[::-1], sep="\\n", flush=True)
"""
_GRADIENTS = """\
                got = got if isinstance(got, (list, tuple)) else [got]
                ends = [y for y in got if isinstance(y, torch.Tensor) and y.requires_grad]
                weights = [(torch.arange(y.numel()) % 3 + 0.5).to(y.dtype) for y in ends]
                weights = [w.view(y.shape).to(device) for w, y in zip(weights, ends)]
                torch.autograd.backward(ends, weights)
                print(device, [y.grad for y in x if isinstance(y, torch.Tensor)], flush=True)
"""


def script(cases: Sequence[Data]) -> str:
    """The source of a script that makes a call on the CPU and on the device; of several calls of
    one mode, all before any result is read."""
    mode = cases[0]["mode"]
    execute, sizes = MODES[mode]
    settings = {"TENON_EXECUTE": execute, "TENON_PLAN_FILES": "0"}
    if config.TARGET.is_set():
        settings["TENON_TARGET"] = config.TARGET.read()
    graph = mode in ("compiled", "dynamic")
    parts, names = [_HEAD.format(settings=json.dumps(settings))], {}
    for i, data in enumerate(cases):
        case = Case(data)
        computes: dict[str, str] = {}
        for k in sorted(set(sizes)):
            given, compute = (text.rstrip() for text in case.source(k).split("\n\n\n"))
            ending = "_".join(
                str(n) for n, several in ((i, len(cases) > 1), (k, len(set(sizes)) > 1)) if several
            )
            suffix = f"_{ending}" if ending else ""
            parts.append(given.replace("def given(", f"def given{suffix}("))
            if compute not in computes:
                computes[compute] = f"compute{suffix}"
                text = compute.replace("def compute(", f"def compute{suffix}(")
                parts.append(text)
                if graph:
                    dynamic = mode == "dynamic"
                    parts[-1] += (
                        f"\n\n\ncompiled{suffix} = torch.compile(compute{suffix}, "
                        f'backend="tenon", dynamic={dynamic})'
                    )
            names[i, k] = (f"given{suffix}", computes[compute])
    turns = [
        "[" + ", ".join(f"({', '.join(names[i, k])})" for i in range(len(cases))) + "]"
        for k in sizes
    ]
    call = "compute"
    if graph:
        for key, (given, compute) in names.items():
            names[key] = (given, compute)
        call = '(globals()[compute.__name__.replace("compute", "compiled")]\n' + " " * 23
        call += 'if device.type == "tenon" else compute)'
    after = _SHOW if len(cases) == 1 else _SHOW_TOGETHER
    if any(t.get("grad") for data in cases for t in data["tensors"]):
        after = _GRADIENTS + after
    parts.append(_LOOP.format(turns=f"[{', '.join(turns)}]", call=call, after=after))
    return "\n\n\n".join(p.rstrip("\n") for p in parts) + "\n"
