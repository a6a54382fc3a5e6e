"""A failing call as a script that runs by itself and shows what differs."""

from __future__ import annotations

from typing import Any

from torch_tenon.testing.space.case import Case
from torch_tenon.testing.space.running import MODES

_HEAD = """\
import os

os.environ |= {settings!r}
import torch

inf, nan = float("inf"), float("nan")
"""


def script(data: dict[str, Any]) -> str:
    """The source of a script that makes a call on the CPU and on the device."""
    case = Case(data)
    execute, sizes = MODES[case.mode]
    settings = {"TENON_EXECUTE": execute, "TENON_PLAN_FILES": "0"}
    graph = case.mode in ("compiled", "dynamic")
    parts = [_HEAD.format(settings=settings)]
    several = len(set(sizes)) > 1
    for k in sorted(set(sizes)):
        given, compute = case.source(k).split("\n\n\n")
        name = f"given_{k}" if several else "given"
        parts.append(given.replace("def given(", f"def {name}("))
        if not several or k == max(sizes) or not graph:
            parts.append(
                compute.rstrip().replace("def compute(", f"def compute_{k}(")
                if several and not graph
                else compute.rstrip()
            )
    runs = []
    for k in sizes:
        suffix = f"_{k}" if several else ""
        compute = f"compute{suffix if not graph else ''}"
        runs.append(f"({compute}, given{suffix})")
    grad = any(t.get("grad") for t in data["tensors"])
    lines = []
    if graph:
        dynamic = case.mode == "dynamic"
        lines.append(f'compiled = torch.compile(compute, backend="tenon", dynamic={dynamic})')
    lines.append(f"for compute, given in [{', '.join(runs)}]:")
    lines.append('    for device in map(torch.device, ("cpu", "tenon")):')
    lines.append("        arguments = given(device)")
    call = 'compiled if device.type == "tenon" else compute' if graph else "compute"
    lines.append("        try:")
    lines.append(f"            got = ({call})(device, *arguments)")
    if grad:
        lines.append("            got = got if isinstance(got, torch.Tensor) else got[0]")
        lines.append(
            "            got.backward((torch.arange(got.numel()) % 3 + 0.5)"
            ".to(got.dtype).view(got.shape).to(device))"
        )
        lines.append("            print(device, got, [x.grad for x in arguments], flush=True)")
    else:
        lines.append("            print(device, got, arguments, flush=True)")
    lines.append("        except Exception as error:")
    lines.append("            print(device, type(error).__name__, error, flush=True)")
    parts.append("\n".join(lines))
    return "\n\n".join(p.rstrip("\n") for p in parts).replace("\n\ndef", "\n\n\ndef") + "\n"
