"""A kernel written by hand in OpenCL C, with the one around it that the queue launches."""

from __future__ import annotations

import torch

from torch_tenon.compiler.handwritten import Asked, Code, Launch, Parameter
from torch_tenon.ir.index import Index, floordiv

# What a pointer to elements has to point to.
_ELEMENTS = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "half",
    torch.int8: "char",
    torch.int16: "short",
    torch.int32: "int",
    torch.int64: "long",
    torch.uint8: "uchar",
    torch.bool: "uchar",
    torch.bfloat16: "ushort",
}


def with_launch(code: Code) -> str:
    """The source and, behind it, a kernel `@NAME@` with the parameters of a generated one: memory
    and offset of each tensor, then numbers.

    Raises NotImplementedError for a grid that is not one axis, in groups of a known size.
    """
    if code.axes != 1:
        raise NotImplementedError(f"{code.entry}: `global_size` has to be one axis on this target")
    if None in code.group:
        raise NotImplementedError(f"{code.entry}: `local_size` has to be a number on this target")
    parameters, given = [], []
    pointers = numbers = 0
    for p in code.parameters:
        if p.is_tensor:
            parameters.append(f"__global uchar *m{pointers}, const ulong o{pointers}")
            given.append(f"(__global {_ELEMENTS[p.dtype]} *)(m{pointers} + o{pointers})")
            pointers += 1
        else:
            given.append(_number(p, f"n{numbers}"))
            numbers += 1
    parameters += [f"const long n{k}" for k in range(numbers)]
    file = (code.file or f"{code.entry}.cl").replace("\\", "/").replace('"', "'")
    return f"""#line {code.line} "{file}"
{code.text}
#line 1 "the declared arguments of {code.entry}"
__attribute__((reqd_work_group_size({group_of(code)}, 1, 1)))
__kernel void @NAME@({", ".join(parameters)}) {{
  {code.entry}({", ".join(given)});
}}
"""


def elements_of(code: Code) -> list[str | None]:
    """By parameter: what its pointer is declared to point to; None for a number."""
    return [_ELEMENTS[p.dtype] if p.is_tensor else None for p in code.parameters]


def words_of(launch: Launch) -> list[Index | Asked]:
    """The numbers of a launch: how many groups, then those of the parameters."""
    group = group_of(launch.code)
    return [floordiv(launch.global_size[0] + group - 1, group), *launch.words()]


def group_of(code: Code) -> int:
    """How many runs are a work-group; one where nothing is said."""
    return (code.group[0] or 1) if code.group else 1


def _number(p: Parameter, name: str) -> str:
    if p.dtype is torch.float64:
        return f"as_double({name})"
    if p.dtype is torch.float32:
        return f"as_float((int){name})"
    return f"({_ELEMENTS[p.dtype]}){name}"
