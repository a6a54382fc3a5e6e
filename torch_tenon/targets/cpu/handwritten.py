"""A kernel written by hand in C, with the function around it that plans call."""

from __future__ import annotations

import torch

from torch_tenon.compiler.handwritten import Code, Parameter

ENTRY = "tenon_launch"

# What a pointer to elements has to point to. Of the other dtypes C has no type that all use.
_ELEMENTS = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int8: "int8_t",
    torch.int16: "int16_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
    torch.uint8: "uint8_t",
}


def with_launch(code: Code) -> str:
    """The source and, behind it, the function `ENTRY` with the signature of a generated kernel."""
    found = []
    pointers = numbers = 0
    for parameter in code.parameters:
        if parameter.is_tensor:
            found.append(_pointer(parameter, pointers))
            pointers += 1
        else:
            found.append(_number(parameter, numbers))
            numbers += 1
    file = (code.file or f"{code.entry}.c").replace("\\", "/").replace('"', "'")
    return f"""#line {code.line} "{file}"
{code.text}
#line 1 "the declared arguments of {code.entry}"
#include <stdint.h>
void {ENTRY}(void *const *pointers, const int64_t *numbers, int64_t *status) {{
  {code.entry}({", ".join(found)});
}}
"""


def _pointer(parameter: Parameter, place: int) -> str:
    element = _ELEMENTS.get(parameter.dtype, "void")
    return f"({element} *)pointers[{place}]"


def _number(parameter: Parameter, place: int) -> str:
    if not parameter.dtype.is_floating_point:
        return f"({_ELEMENTS.get(parameter.dtype, 'int64_t')})numbers[{place}]"
    kind, bits = ("double", "int64_t") if parameter.dtype is torch.float64 else ("float", "int32_t")
    return f"((union {{ {bits} bits; {kind} value; }}){{({bits})numbers[{place}]}}).value"
