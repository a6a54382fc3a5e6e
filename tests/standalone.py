"""Modules as programs that need neither PyTorch's kernels nor its code, and what they compute."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from torch_tenon import device
from torch_tenon.compiler.plan import Plan
from torch_tenon.frontends.dynamo import CompiledGraph, places_of
from torch_tenon.frontends.graph import build
from torch_tenon.ops.compositions import decompositions


class Standalone:
    """A module's forward as a stand-alone program, for arguments of these sizes and dtypes."""

    def __init__(self, module: torch.nn.Module, args: Sequence[Any], **how: Any) -> None:
        with torch.no_grad():
            traced = torch.export.export(module.eval(), tuple(args), strict=False, **how)
        self.exported: ExportedProgram = traced.run_decompositions(decompositions(True))
        self.graph = self.exported.graph_module
        built = build(self.graph, standalone=True)
        backend = device.backend(torch.device("cpu"))
        assert backend is not None
        plan = Plan(built.program, backend).compile()
        self.run = CompiledGraph(built, plan, places_of(self.graph), self.graph.forward)

    @property
    def calls(self) -> list[str]:
        """The ops that are calls of PyTorch's kernels."""
        steps = self.run.plan.steps
        return sorted(str(s.call.target) for s in steps if s.call is not None)

    def __call__(self, *args: Any, **keywords: Any) -> list[Any]:
        """The results, of which changed buffers come first."""
        held = {**self.exported.state_dict, **self.exported.constants}
        given = [
            held[s.target].detach()
            for s in self.exported.graph_signature.input_specs
            if s.target is not None
        ]
        return self.run([*given, *tree_leaves((args, keywords))])
