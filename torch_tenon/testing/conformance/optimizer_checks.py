"""The checks of an optimizer: a few steps of a small model in each configuration."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._foreach_utils import (
    _get_foreach_kernels_supported_devices,
    _get_fused_kernels_supported_devices,
)

from torch_tenon.testing.fuzz.surroundings import deterministic

from .case import CheckResult
from .comparison import Comparison
from .inputs import chosen
from .placement import Placement
from .sides import Outcome, Sides
from .tally import Tally

STEPS = 4
SEARCH = {"max_iter": 4}  # within a step of an optimizer that searches: a few


class OptimizerChecks:
    """All checks of one entry of `optim_db` with one dtype of the parameters.

    Each configuration runs with the plain, the foreach and the fused implementation, as far as the
    optimizer has them on the CPU and PyTorch offers them for the device. `limit` is the number of
    configurations to run, 0 for all; `position` is told the check and the configuration.
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
        self._implementations = self._supported(device)
        self.tally = Tally(self._implementations, position, self.sides.made)
        self.samples = self.samples_available = 0

    def run(self) -> dict[str, CheckResult]:
        """Runs every configuration; a check stops at its first failure."""
        for name, config in self._configs():
            for implementation, flags in self._implementations.items():
                kwargs = {**config, **flags}
                self.tally.check(
                    implementation,
                    name,
                    partial("{}: {}".format, name, kwargs),
                    partial(self.steps, kwargs),
                )
        return self.tally.results()

    def _configs(self) -> Iterator[tuple[str, dict[str, Any]]]:
        found, self.samples_available = chosen(self.info.optim_inputs_func("cpu"), self.limit)
        self.samples = len(found)
        for index, config in found:
            yield f"{index} ({config.desc})", config.kwargs

    def _supported(self, device: str) -> dict[str, dict[str, bool]]:
        has = self.info.supported_impls
        flags = {name: False for name in ("foreach", "fused") if name in has}
        supported: dict[str, dict[str, bool]] = {"plain": dict(flags)}
        if "foreach" in has and device in ("cpu", *_get_foreach_kernels_supported_devices()):
            supported["foreach"] = {**flags, "foreach": True}
        if (
            "fused" in has
            and "cpu" in self.info.supports_fused_on
            and device in _get_fused_kernels_supported_devices()
        ):
            supported["fused"] = {**flags, "fused": True}
        return supported

    def steps(self, kwargs: dict[str, Any]) -> Outcome:
        """Parameters and state after `STEPS` steps from the same start on the same data."""
        only_matrices = self.info.name == "Muon" or self.info.only_supports_sparse_grads
        masters = _parameters(self.dtype, matrices_only=only_matrices)
        x, y = _make((8, 4), self.dtype, 8), _make((8, 2), self.dtype, 9)
        searches = SEARCH.keys() <= inspect.signature(self.info.optim_cls).parameters.keys()
        if searches:
            kwargs = SEARCH | kwargs

        def prepare(place: Placement) -> Callable[[], Any]:
            parameters = [place(master) for master in masters]
            data = place(x), place(y)

            def call() -> Any:
                optimizer = self.info.optim_cls(parameters, **copy.deepcopy(kwargs))

                def closure() -> torch.Tensor:
                    optimizer.zero_grad()
                    loss = self._loss(parameters, *data)
                    loss.backward()
                    return loss

                losses = [optimizer.step(closure).detach() for _ in range(STEPS)]
                return {
                    "losses": losses,
                    "parameters": [p.detach() for p in parameters],
                    "state": _state(optimizer),
                }

            return call

        # Each evaluation of a search makes a last bit weigh more: there all have to be the same,
        # and no plan takes over from reference execution.
        with torch.enable_grad(), deterministic() if searches else contextlib.nullcontext():
            return self.sides.compare(prepare, check="steps", grad=True, mutation=False)

    def _loss(
        self, parameters: list[torch.Tensor], x: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        if self.info.only_supports_sparse_grads:
            rows = torch.tensor([0, 2, 2, 1]).to(x.device)
            looked_up = [torch.nn.functional.embedding(rows, p, sparse=True) for p in parameters]
            return torch.cat([part.abs().square().flatten() for part in looked_up]).sum()
        first, second, *biases = parameters
        hidden = x @ first + (biases[0] if biases else 0)
        output = hidden.tanh() @ second + (biases[1] if biases else 0)
        return (output - y).abs().square().mean()


def _parameters(dtype: torch.dtype, *, matrices_only: bool) -> list[torch.Tensor]:
    shapes = [(4, 3), (3, 2)] if matrices_only else [(4, 3), (3, 2), (3,), (2,)]
    return [_make(shape, dtype, seed).requires_grad_() for seed, shape in enumerate(shapes)]


def _make(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, dtype=wide, generator=generator).to(dtype)


def _state(optimizer: torch.optim.Optimizer) -> Any:
    """The state by parameter, with scalars as numbers: what counts steps or comes from a learning
    rate may be on the host beside parameters of a device.
    """

    def plain(value: Any) -> Any:
        return value.item() if isinstance(value, torch.Tensor) and value.dim() == 0 else value

    return {
        index: {key: plain(value) for key, value in state.items()}
        for index, state in optimizer.state_dict()["state"].items()
    }
