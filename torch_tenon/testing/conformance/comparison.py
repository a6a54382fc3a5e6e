"""Whether the device's answer is the CPU's: structure, metadata, aliasing and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence


class Mismatch(AssertionError):
    """The device's answer is not the CPU's. `reason` is its category, the text the detail."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


# Integer dtypes for which the CPU has few kernels, and what holds the same bits.
_SAME_BITS = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}


class Comparison:
    """Compares results of the device type `device` with the CPU's.

    `assert_equal(actual, expected)` compares the values of two CPU tensors within a tolerance and
    raises AssertionError; it is only asked when they are not equal bit for bit. What differs but is
    not wrong (the strides of a result that is no view) goes to `notes`.
    """

    def __init__(
        self, device: str, assert_equal: Callable[[torch.Tensor, torch.Tensor], None]
    ) -> None:
        self.device = torch.device(device)
        self.assert_equal = assert_equal
        self.notes: set[str] = set()

    def results(
        self,
        actual: Any,
        expected: Any,
        *,
        actual_inputs: Sequence[torch.Tensor] = (),
        expected_inputs: Sequence[torch.Tensor] = (),
        values: bool = True,
        where: str = "result",
    ) -> None:
        """Raises Mismatch unless `actual` is what `expected` is, inputs of both taken in order.

        A result that is a view of an input on the CPU has to be one of the same input here, with
        the same strides and offset, and a result that is none must not be one here.
        """
        if isinstance(expected, torch.Tensor):
            self._metadata(actual, expected, where)
            self._aliasing(actual, expected, actual_inputs, expected_inputs, where)
            if values:
                self.values(actual, expected, where)
        elif isinstance(expected, PackedSequence):
            names = ("data", "sorted_indices", "unsorted_indices")
            self.results(
                {name: getattr(actual, name, None) for name in names},
                {name: getattr(expected, name) for name in names},
                values=values,
                where=where,
            )
        elif isinstance(expected, (list, tuple)):
            if type(actual) is not type(expected) or len(actual) != len(expected):
                raise Mismatch(
                    "structure differs", f"{where}: {_kind(actual)}, CPU {_kind(expected)}"
                )
            for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
                self.results(
                    one,
                    other,
                    actual_inputs=actual_inputs,
                    expected_inputs=expected_inputs,
                    values=values,
                    where=f"{where}[{index}]",
                )
        elif isinstance(expected, dict):
            if type(actual) is not type(expected) or list(actual) != list(expected):
                raise Mismatch(
                    "structure differs", f"{where}: {_kind(actual)}, CPU {_kind(expected)}"
                )
            for key in expected:
                self.results(
                    actual[key],
                    expected[key],
                    actual_inputs=actual_inputs,
                    expected_inputs=expected_inputs,
                    values=values,
                    where=f"{where}[{key!r}]",
                )
        elif type(actual) is not type(expected):
            raise Mismatch("structure differs", f"{where}: {_kind(actual)}, CPU {_kind(expected)}")
        elif values and isinstance(expected, (float, complex)):
            self.values(torch.tensor(actual), torch.tensor(expected), where)
        elif values and actual != expected:
            if isinstance(expected, torch.device) and actual.type == self.device.type:
                return
            raise Mismatch("values differ", f"{where}: {actual!r}, CPU {expected!r}")

    def values(self, actual: torch.Tensor, expected: torch.Tensor, where: str) -> None:
        """Raises Mismatch unless the two hold the same values within the tolerance."""
        actual, expected = on_cpu(actual), on_cpu(expected)
        if expected.is_quantized:
            actual, expected = actual.dequantize(), expected.dequantize()
        actual, expected = _comparable(actual), _comparable(expected)
        if expected.layout == torch.strided and torch.equal(actual, expected):
            return
        try:
            self.assert_equal(actual, expected)
        except AssertionError as error:
            text = " ".join(str(error).split("\n\nTo execute")[0].split())
            raise Mismatch("values differ", f"{where}: {text}") from None

    def _metadata(self, actual: Any, expected: torch.Tensor, where: str) -> None:
        if not isinstance(actual, torch.Tensor):
            raise Mismatch("structure differs", f"{where}: {_kind(actual)}, CPU {_kind(expected)}")
        for name in ("dtype", "layout", "shape"):
            mine, theirs = getattr(actual, name), getattr(expected, name)
            if mine != theirs:
                raise Mismatch(f"{name} differs", f"{where}: {_show(mine)}, CPU {_show(theirs)}")
        if actual.device.type != self.device.type:
            raise Mismatch("device differs", f"{where} is on {actual.device}, not {self.device}")

    def _aliasing(
        self,
        actual: torch.Tensor,
        expected: torch.Tensor,
        actual_inputs: Sequence[torch.Tensor],
        expected_inputs: Sequence[torch.Tensor],
        where: str,
    ) -> None:
        if expected.layout != torch.strided:
            return
        theirs = _aliased(expected, expected_inputs)
        mine = _aliased(actual, actual_inputs)
        if mine != theirs:
            words = ["no input" if i is None else f"input {i}" for i in (mine, theirs)]
            raise Mismatch(
                "aliasing differs", f"{where} shares {words[0]}'s memory, CPU {words[1]}'s"
            )
        if expected.numel() == 0 or same_strides(actual, expected):
            return
        message = f"strides {actual.stride()}, CPU {expected.stride()}"
        if theirs is not None:
            raise Mismatch("strides of a view differ", f"{where}: {message}")
        self.notes.add(f"strides differ: {where} of shape {tuple(expected.shape)} has {message}")


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` without history and pending conjugation or negation, on the CPU."""
    tensor = tensor.detach()
    if tensor.layout == torch.strided:
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.cpu()


def same_strides(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether strides agree in every dimension that has more than one element."""
    return all(
        a == b or size <= 1
        for a, b, size in zip(one.stride(), other.stride(), other.shape, strict=True)
    )


def _aliased(result: torch.Tensor, inputs: Sequence[torch.Tensor]) -> int | None:
    for index, tensor in enumerate(inputs):
        if tensor.layout == torch.strided and _share_storage(result, tensor):
            return index
    return None


def _share_storage(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` in a dtype that PyTorch can compare, losing nothing."""
    if tensor.dtype in _SAME_BITS:
        return tensor.view(_SAME_BITS[tensor.dtype])
    if tensor.dtype == torch.complex32:
        return tensor.to(torch.complex64)
    if tensor.dtype.is_floating_point and tensor.element_size() == 1:
        return tensor.to(torch.float32)
    return tensor


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"Tensor{list(value.shape)} {_show(value.dtype)}"
    if isinstance(value, (list, tuple, dict)):
        return f"{type(value).__name__} of {len(value)}"
    return f"{type(value).__name__} {value!r:.40}"


def _show(value: Any) -> str:
    return str(list(value)) if isinstance(value, torch.Size) else str(value).removeprefix("torch.")
