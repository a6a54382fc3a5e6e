"""The checks of an op: forward, non-contiguous inputs, backward, `out=`, in-place, errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from torch_tenon.ops import manifest

from .case import CheckResult
from .comparison import Comparison
from .databases import in_order
from .inputs import chosen
from .long_inputs import long_inputs
from .placement import Placement, spread, tensors_in
from .sides import Outcome, Sides
from .tally import Tally

# Results that are unique only up to a sign, a phase or a basis. The database's own
# `output_process_fn_grad` maps them to what is unique.
NOT_UNIQUE = {
    "linalg.eig",
    "linalg.eigh",
    "linalg.svd",
    "pca_lowrank",
    "svd",
    "svd_lowrank",
}

CHECKS = ("forward", "noncontiguous", "backward", "out", "inplace")


class OpChecks:
    """All checks of one entry of `op_db` with one dtype.

    `op` is the OpInfo, `limit` the number of samples of the database to run (0 for all) and `long`
    whether to run our long ones too. `position` is told the check and the sample before each is
    run. Inputs are generated on the CPU.
    """

    def __init__(
        self,
        op: Any,
        dtype: torch.dtype,
        device: str,
        comparison: Comparison,
        *,
        limit: int = 0,
        long: bool = False,
        position: Callable[[str, str], None] = lambda check, sample: None,
    ) -> None:
        self.op = op
        self.dtype = dtype
        self.limit = limit
        self.long = long
        uninitialised = manifest.of(f"aten::{op.name}").uninitialised
        self.sides = Sides(device, comparison, values=not uninitialised)
        self.differentiable = dtype in op.supported_backward_dtypes("cpu")
        self.tally = Tally((*CHECKS, "errors"), position, self.sides.made)
        self.samples = self.samples_available = 0
        variants = [op.inplace_variant, op.inplace_operator_variant]
        variants += [alias.inplace_variant for alias in op.aliases]
        self._expected: Any = None  # the CPU's result for the sample at hand
        self._inplace_variants = [variant for variant in variants if variant is not None]

    def run(self) -> dict[str, CheckResult]:
        """Runs every check on every sample; a check stops at its first failure."""
        for index, sample in self._samples():
            name = f"{index}" + (f" ({sample.name})" if sample.name else "")
            self._expected = None
            for check in CHECKS:
                run = partial(getattr(self, check), sample)
                self.tally.check(check, name, partial(_summary, name, sample), run)
        if self.op.error_inputs_func is not None and self.dtype == in_order(self.op.dtypes)[0]:
            for index, error in enumerate(self.op.error_inputs("cpu")):
                sample = error.sample_input
                run = partial(self.errors, sample)
                self.tally.check("errors", f"error {index}", partial(_summary, "", sample), run)
        return self.tally.results()

    def _samples(self) -> list[tuple[int, Any]]:
        found, self.samples_available = chosen(
            self.op.sample_inputs("cpu", self.dtype, requires_grad=self.differentiable),
            self.limit,
            lambda sample: [sample.input, sample.args, sample.kwargs],
        )
        if self.long:
            ours = long_inputs(self.op, self.dtype, requires_grad=self.differentiable)
            found += enumerate(ours, self.samples_available)
            self.samples_available += len(ours)
        self.samples = len(found)
        return found

    def forward(self, sample: Any) -> Outcome | None:
        """The plain call without autograd: values, metadata, views, writes to inputs."""
        prepare = partial(self._forward_on, sample)
        process = self._process(sample)
        outcome = self.sides.compare(prepare, check="forward", process=process, aliasing=True)
        self._expected = outcome.value
        return outcome

    def noncontiguous(self, sample: Any) -> Outcome | None:
        """The call, and its backward, with non-contiguous inputs and output gradients."""
        spread_sample = _Spread()(sample)
        if spread_sample is None:
            return None
        outcome = self.sides.compare(
            partial(self._forward_on, spread_sample),
            check="noncontiguous",
            process=self._process(sample),
            aliasing=True,
            # The database gives no such inputs: where the CPU's kernel refuses them, the device
            # need not.
            must_raise=False,
        )
        if self.differentiable and outcome.error is None:
            self._gradients(spread_sample, self.op, "noncontiguous", spread_cotangents=True)
        return outcome

    def backward(self, sample: Any) -> Outcome | None:
        """The call with autograd and the gradients of all inputs, by one vector each."""
        return self._gradients(sample, self.op, "backward") if self.differentiable else None

    def out(self, sample: Any) -> Outcome | None:
        """`out=` of the right size, non-contiguous, empty, too long, and of a wrong dtype."""
        if not self.op.supports_out:
            return None
        expected = self._expected
        if expected is None:
            # The forward check failed on this sample or before it.
            expected = self._forward_on(sample, Placement("cpu"))()
        single = isinstance(expected, torch.Tensor)
        outputs = [expected] if single else expected
        if not isinstance(outputs, (list, tuple)) or not outputs:
            return None
        if not all(isinstance(t, torch.Tensor) and t.layout == torch.strided for t in outputs):
            return None
        outcomes = []
        for name, transform in _OUT_FORMS.items():
            with torch.no_grad():
                masters = [transform(t.detach()) for t in outputs]

            def prepare(
                place: Placement, masters: list[torch.Tensor] = masters, name: str = name
            ) -> Callable[[], Any]:
                args, kwargs = self._place(place, sample)
                outs = [place(master) for master in masters]
                addresses = [t.data_ptr() for t in outs]

                def call() -> Any:
                    with torch.no_grad():
                        returned = self.op(*args, **kwargs, out=outs[0] if single else tuple(outs))
                    returned = [returned] if single else list(returned)
                    is_out = [r is o for o, r in zip(outs, returned, strict=True)]
                    result = {"out": outs, "returned is out": is_out}
                    if name in _KEPT:
                        result["strides"] = [list(t.stride()) for t in outs]
                        kept = zip(outs, addresses, strict=True)
                        result["memory kept"] = [t.data_ptr() == a for t, a in kept]
                    return result

                return call

            process = self._process(sample)
            if process is not None:
                process = partial(_process_out, process, single)
            outcomes.append(
                self.sides.compare(prepare, check=f"out {name}", process=process, mutation=False)
            )
        return _best(outcomes)

    def inplace(self, sample: Any) -> Outcome | None:
        """Each in-place variant: the same object and memory, the values, the gradients."""
        if not isinstance(sample.input, torch.Tensor):
            return None
        outcomes = []
        for variant in self._inplace_variants:

            def prepare(
                place: Placement, variant: Callable[..., Any] = variant
            ) -> Callable[[], Any]:
                args, kwargs = self._place(place, sample)
                address = args[0].data_ptr()

                def call() -> Any:
                    with torch.no_grad():
                        returned = variant(*args, **kwargs)
                    return {
                        "input": args[0],
                        "returned is input": returned is args[0],
                        "memory kept": args[0].data_ptr() == address,
                    }

                return call

            outcomes.append(self.sides.compare(prepare, check="inplace"))
        outcome = _best(outcomes)
        if self.differentiable and self.op.supports_inplace_autograd and outcome:
            self._gradients(sample, partial(_on_clone, self._inplace_variants[0]), "inplace")
        return outcome

    def _forward_on(self, sample: Any, place: Placement) -> Callable[[], Any]:
        args, kwargs = self._place(place, sample)

        def call() -> Any:
            with torch.no_grad():
                return self.op(*args, **kwargs)

        return call

    def errors(self, sample: Any) -> Outcome:
        """Bad input, which depends on no dtype: the device raises what the CPU raises."""
        outcome = self.sides.compare(partial(self._forward_on, sample), check="errors")
        # That both raised is what was to be shown.
        return Outcome(outcome.value)

    def _gradients(
        self,
        sample: Any,
        function: Callable[..., Any],
        check: str,
        *,
        spread_cotangents: bool = False,
    ) -> Outcome | None:
        def prepare(place: Placement) -> Callable[[], Any]:
            args, kwargs = self._place(place, sample)
            inputs = [t for t in place.tensors() if t.requires_grad]

            def call() -> Any:
                result = sample.output_process_fn_grad(function(*args, **kwargs))
                outputs = [t for t in tensors_in(result) if t.requires_grad]
                if not outputs or not inputs:
                    return None
                cotangents = [
                    cotangent(t, seed, spread_cotangents) for seed, t in enumerate(outputs)
                ]
                gradients = torch.autograd.grad(
                    outputs,
                    inputs,
                    [place.apart(cotangent) for cotangent in cotangents],
                    allow_unused=True,
                )
                return {"outputs": [t.detach() for t in outputs], "gradients": list(gradients)}

            return call

        with torch.enable_grad():
            outcome = self.sides.compare(prepare, check=check, grad=True, mutation=False)
        return None if outcome.error is None and outcome.value is None else outcome

    def _process(self, sample: Any) -> Callable[[Any], Any] | None:
        return sample.output_process_fn_grad if self.op.name in NOT_UNIQUE else None

    def _place(self, place: Placement, sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = (place(sample.input), *place(sample.args)), place(sample.kwargs)
        if self.op.is_factory_function and not place.tensors() and "device" not in kwargs:
            # Without a device a factory function makes a tensor of the CPU.
            kwargs["device"] = place.device
        return args, kwargs


class _Spread(Placement):
    """Spreads the contiguous tensors of a sample instead of moving them."""

    def __init__(self) -> None:
        super().__init__("cpu", grad=True)

    def __call__(self, sample: Any) -> Any:
        """The sample with non-contiguous tensors, or None where it holds no tensor."""
        place = super().__call__
        arguments = place(sample.input), place(sample.args), place(sample.kwargs)
        if not self.tensors():
            return None
        spread_sample = type(sample)(arguments[0], args=arguments[1], kwargs=arguments[2])
        spread_sample.output_process_fn_grad = sample.output_process_fn_grad
        return spread_sample

    def _tensor(self, original: torch.Tensor) -> torch.Tensor:
        if original.layout != torch.strided or not original.is_contiguous():
            return super()._tensor(original)
        return spread(original).requires_grad_(original.requires_grad)


def _best(outcomes: list[Outcome]) -> Outcome | None:
    """An outcome without error if there is one: then something was compared."""
    return min(outcomes, key=lambda outcome: outcome.error is not None, default=None)


def _process_out(process: Callable[[Any], Any], single: bool, value: Any) -> Any:
    return process(value["out"][0] if single else tuple(value["out"]))


def _on_clone(variant: Callable[..., Any], first: Any, *args: Any, **kwargs: Any) -> Any:
    return variant(first.clone(), *args, **kwargs)


def _summary(name: str, sample: Any) -> str:
    return f"{name}: {sample.summary()}"[:600]


def cotangent(output: torch.Tensor, seed: int, noncontiguous: bool = False) -> torch.Tensor:
    """A random gradient for `output`, the same for the CPU and the device.

    Its elements are eighths below two, which every floating-point dtype holds exactly: so it is the
    same for the judge in double precision too.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (*output.shape, 2) if output.is_complex() else tuple(output.shape)
    value = torch.randint(-16, 17, shape, generator=generator) / 8
    value = torch.view_as_complex(value) if output.is_complex() else value
    value = value.to(output.dtype)
    return spread(value) if noncontiguous else value


def _filled(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return torch.full_like(tensor, float("nan"))
    if tensor.dtype == torch.bool:
        return torch.ones_like(tensor)
    return torch.full_like(tensor, 99)


def _longer(tensor: torch.Tensor) -> torch.Tensor:
    shape = [*tensor.shape[:-1], tensor.shape[-1] + 1] if tensor.dim() else [2]
    return tensor.new_zeros(shape)


# Forms that are written where they are; the others are resized, or refused.
_KEPT = {"right-sized", "non-contiguous"}
_OUT_FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "right-sized": _filled,
    "non-contiguous": lambda tensor: spread(_filled(tensor)),
    "empty": lambda tensor: tensor.new_empty(0),
    "too long": _longer,
    "of dtype int64": lambda tensor: torch.zeros(tensor.shape, dtype=torch.int64),
}
