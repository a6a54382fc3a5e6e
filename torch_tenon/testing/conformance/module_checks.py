"""The checks of a module: forward and backward in training and evaluation, with one state dict."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from .case import CheckResult
from .comparison import Comparison
from .inputs import chosen
from .op_checks import cotangent
from .placement import Placement, tensors_in
from .sides import Outcome, Sides
from .tally import Tally


class ModuleChecks:
    """All checks of one entry of `module_db` with one dtype.

    `limit` is the number of inputs to run in each mode, 0 for all; `position` is told the check
    and the input before each is run. Inputs and the initial state are generated on the CPU.
    """

    def __init__(
        self,
        info: Any,
        dtype: torch.dtype,
        device: str,
        comparison: Comparison,
        *,
        limit: int = 0,
        position: Callable[[str, str], None] = lambda check, sample: None,
    ) -> None:
        self.info = info
        self.dtype = dtype
        self.limit = limit
        self.sides = Sides(device, comparison)
        modes = (True, False) if info.train_and_eval_differ else (True,)
        self._modes = {"train": True, "eval": False} if len(modes) == 2 else {"train": True}
        names = [f"{check} {mode}" for mode in self._modes for check in ("forward", "backward")]
        self.tally = Tally(names, position, self.sides.made)
        self.samples = self.samples_available = 0

    def run(self) -> dict[str, CheckResult]:
        """Runs every check on every input; a check stops at its first failure."""
        for mode, training in self._modes.items():
            for name, sample in self._inputs(training):
                summary = partial(_summary, name, sample)
                for check, grad in (("forward", False), ("backward", True)):
                    run = partial(self.call, sample, training=training, grad=grad)
                    self.tally.check(f"{check} {mode}", name, summary, run)
        return self.tally.results()

    def _inputs(self, training: bool) -> Iterator[tuple[str, Any]]:
        torch.manual_seed(0)
        inputs = self.info.module_inputs_func(
            self.info, device="cpu", dtype=self.dtype, requires_grad=True, training=training
        )
        found, available = chosen(
            (sample for sample in inputs if sample.forward_input is not None),
            self.limit,
            lambda sample: [sample.forward_input.args, sample.forward_input.kwargs],
        )
        self.samples_available += available
        self.samples += len(found)
        for index, sample in found:
            yield f"{index}" + (f" ({sample.desc})" if sample.desc else ""), sample

    def call(self, sample: Any, *, training: bool, grad: bool) -> Outcome:
        """Outputs and the state after the call; with `grad`, gradients of inputs and parameters."""
        torch.manual_seed(0)
        master = self._build(sample, Placement("cpu")).to(self.dtype)

        def prepare(place: Placement) -> Callable[[], Any]:
            module = self._module(sample, master, place).train(training)
            args = place(tuple(sample.forward_input.args))
            kwargs = place(dict(sample.forward_input.kwargs))

            def call() -> Any:
                with torch.set_grad_enabled(grad):
                    output = module(*args, **kwargs)
                    if not grad:
                        return {"output": output, "state": dict(module.state_dict())}
                    return self._gradients(module, place, output)

            return call

        return self.sides.compare(prepare, check="call", grad=grad, mutation=False)

    def _gradients(self, module: Any, place: Placement, output: Any) -> Any:
        outputs = [t for t in tensors_in(output) if t.requires_grad]
        inputs = [t for t in place.tensors() if t.requires_grad]
        names = [f"input {index}" for index in range(len(inputs))]
        for name, parameter in module.named_parameters():
            names.append(name)
            inputs.append(parameter)
        if not outputs or not inputs:
            return {"output": output}
        cotangents = [place.apart(cotangent(t, seed)) for seed, t in enumerate(outputs)]
        gradients = torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)
        return {
            "outputs": [t.detach() for t in outputs],
            "gradients": dict(zip(names, gradients, strict=True)),
        }

    def _module(self, sample: Any, master: Any, place: Placement) -> Any:
        """A module with `master`'s state: made on the device where it can be, moved otherwise."""
        dtype = place.dtype(self.dtype)
        if not self._has_factory_arguments or self.info.is_lazy:
            return copy.deepcopy(master).to(place.device, dtype)
        module = self._build(sample, place).to(dtype)
        module.load_state_dict(master.state_dict())
        return module

    def _build(self, sample: Any, place: Placement) -> Any:
        arguments = sample.constructor_input
        kwargs = place(dict(arguments.kwargs))
        if self._has_factory_arguments:
            kwargs.update(device=place.device, dtype=place.dtype(self.dtype))
        return self.info.module_cls(*place(tuple(arguments.args)), **kwargs)

    @property
    def _has_factory_arguments(self) -> bool:
        return {"device", "dtype"} <= inspect.signature(self.info.module_cls).parameters.keys()


def _summary(name: str, sample: Any) -> str:
    built, called = _show(sample.constructor_input), _show(sample.forward_input)
    return f"{name}: built with {built}, called with {called}"[:600]


def _show(arguments: Any) -> str:
    def one(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"Tensor{list(value.shape)}"
        return repr(value)[:60]

    parts = [one(value) for value in arguments.args]
    parts += [f"{key}={one(value)}" for key, value in arguments.kwargs.items()]
    return f"({', '.join(parts)})"
