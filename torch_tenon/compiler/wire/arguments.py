"""What ops take, as bytes: values as `torch::jit::toIValue` makes them for a type, and defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch_tenon.compiler.wire import archive
from torch_tenon.compiler.wire.archive import (
    NO_DTYPE,
    TORCH_NUMBERS,
    WireError,
    Writer,
    bits_of,
)
from torch_tenon.compiler.wire.schemas import PerOp, if_given, schema_of
from torch_tenon.runtime.dtypes import NUMBERS

Put = Callable[[Writer, Any], None]


class OpArgument(NamedTuple):
    """What an op takes, and how that is written."""

    name: str
    put: Put  # a value
    tensor: bytes  # what stands for a tensor, also in a list
    elements: int  # the type of those of a list with tensors
    put_element: Put  # another element of such a list
    default: bytes | None


class Op(NamedTuple):
    """An op as a plan calls it."""

    text: bytes  # name and overload
    arguments: list[OpArgument]


# A kind, no value and no elements.
NO_ARGUMENT = bytes([2 * archive.CONSTANT_ARGUMENT, 0, 0])
TENSOR = bytes([2 * archive.TENSOR_ARGUMENT, 0, 0])
_NUMBER = bytes([2 * archive.NUMBER_ARGUMENT, 0, 0])


def _op(name: str, overload: str) -> Op:
    arguments = schema_of(name, overload).arguments
    return Op(f"{name}\n{overload}".encode(), [_argument(a) for a in arguments])


def _argument(a: Any) -> OpArgument:
    put = _put(a.type, a.N)
    default = None
    if a.has_default_value():
        writer = Writer()
        writer.number(archive.CONSTANT_ARGUMENT)
        value = a.default_value
        if value is None:
            writer.number(archive.NOTHING)
        else:
            put(writer, value)
        writer.number(0)
        default = bytes(writer.bytes)
    type = if_given(a.real_type)
    element = type.getElementType() if type.kind() == "ListType" else type
    is_number = element.kind() in ("FloatType", "NumberType")
    elements = archive.TENSORS if str(a.type) == "List[Tensor]" else archive.OPTIONAL_TENSORS
    if is_number:
        elements = archive.ELEMENT_TYPES.index(str(element))
    stands = _NUMBER if is_number else TENSOR
    return OpArgument(a.name, put, stands, elements, _put(element, None), default)


OPS = PerOp(_op)


# Values


def _put(type: Any, length: int | None) -> Put:
    """How a value for that type is written. `length`: that of a list which one number may stand
    for."""
    kind = type.kind()
    if kind == "OptionalType":
        return _put_if_given(_put(type.getElementType(), length))
    if kind == "ListType":
        return _put_list(type.getElementType(), length)
    return _PUT.get(kind, _put_refused)


def _put_if_given(put: Put) -> Put:
    def put_optional(writer: Writer, x: Any) -> None:
        if x is None:
            writer.number(archive.NOTHING)
        else:
            put(writer, x)

    return put_optional


def _put_list(type: Any, length: int | None) -> Put:
    put, name = _put(type, None), str(type)
    number = archive.ELEMENT_TYPES.index(name) if name in archive.ELEMENT_TYPES else -1
    one: tuple[type, ...] = {"int": (int,), "float": (float,)}.get(name, ()) if length else ()

    def put_all(writer: Writer, x: Any) -> None:
        if number < 0:
            raise WireError(f"a list of {name} cannot be kept")
        all = [x] * (length or 0) if one and isinstance(x, one) else x
        # One with tensors is no constant.
        if not isinstance(all, list | tuple) or (all and name == "Tensor"):
            raise WireError(f"{x!r} is no list of {name}")
        writer.number(archive.LIST)
        writer.number(number)
        writer.number(len(all))
        for y in all:
            put(writer, y)

    return put_all


def _put_tensor(writer: Writer, x: Any) -> None:
    """No tensor, or a number in the place of one: it becomes a tensor that says so."""
    if x is None:
        writer.number(archive.UNDEFINED)
        return
    if _is_complex(x):
        _put_complex(writer, NUMBERS["complex128"], _complex(x), True)
        return
    if isinstance(x, bool):
        dtype, bits = "bool", int(x)
    elif isinstance(x, int):
        dtype, bits = "int64", x
    elif isinstance(x, float):
        dtype, bits = "float64", bits_of(x)
    else:
        raise WireError(f"{x!r} is no number for a tensor")
    writer.number(archive.NUMBER)
    writer.number(NUMBERS[dtype])
    writer.number(bits)
    writer.number(1)


def _put_int(writer: Writer, x: Any) -> None:
    """A number, or the number of a dtype, a memory format or a layout."""
    if isinstance(x, dict):
        x = TORCH_NUMBERS[x["torch"]]
    elif not isinstance(x, int):
        raise WireError(f"{x!r} is no whole number")
    writer.number(archive.INTEGER)
    writer.number(int(x))


def _put_float(writer: Writer, x: Any) -> None:
    if not isinstance(x, int | float):
        raise WireError(f"{x!r} is no real number")
    writer.number(archive.REAL)
    writer.real(float(x))


def _put_bool(writer: Writer, x: Any) -> None:
    if not isinstance(x, int | float | None):
        raise WireError(f"{x!r} is neither true nor false")
    writer.number(archive.TRUTH)
    writer.number(1 if x else 0)


def _put_number(writer: Writer, x: Any) -> None:
    if isinstance(x, bool):
        _put_bool(writer, x)
    elif isinstance(x, float):
        _put_float(writer, x)
    elif _is_complex(x):
        _put_complex(writer, NO_DTYPE, _complex(x), False)
    else:
        _put_int(writer, x)


def _put_complex(writer: Writer, dtype: int, x: complex, wrapped: bool) -> None:
    writer.number(archive.COMPLEX)
    writer.number(dtype)
    writer.real(x.real)
    writer.real(x.imag)
    writer.number(wrapped)


def _put_text(writer: Writer, x: Any) -> None:
    if not isinstance(x, str):
        raise WireError(f"{x!r} is no text")
    writer.number(archive.TEXT)
    writer.text(x)


def _put_device(writer: Writer, x: Any) -> None:
    writer.number(archive.DEVICE)
    writer.text(str(x))


def _put_refused(writer: Writer, x: Any) -> None:
    raise WireError(f"{x!r}: no plan holds an argument of this type")


def _is_complex(x: Any) -> bool:
    return isinstance(x, complex) or (isinstance(x, dict) and "complex" in x)


def _complex(x: Any) -> complex:
    return x if isinstance(x, complex) else complex(*x["complex"])


_PUT: dict[str, Put] = {
    "TensorType": _put_tensor,
    "IntType": _put_int,
    "SymIntType": _put_int,
    "FloatType": _put_float,
    "BoolType": _put_bool,
    "NumberType": _put_number,
    "StringType": _put_text,
    "DeviceObjType": _put_device,
}
