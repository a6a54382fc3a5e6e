"""The tables of scalar operations and of reductions: all that is known of each.

A row says how many operands an operation takes, which dtype it has, what it computes, which sign
writes it, and what it costs. `ir/scalar.py` records operations; targets spell them.

Dtype rules:
  s  operands share a dtype, and the result has it
  b  operands share a dtype, the result is bool
  f  as s, floating operands only
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# What an operation costs.
SIMPLE = "simple"  # it calls no function: it stays vector code where a condition guards it
SHORT = "short"
LONG = "long"  # some thirty dependent instructions or more


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """What is known of a scalar operation."""

    arity: int
    rule: str
    text: str
    sign: str = ""  # written between two operands or before one. Without one it is a function
    bool_sign: str = ""  # ... for bools, where that is another one
    cost: str = SHORT
    plain: bool = False  # of integers no faster with a number that the compiler knows
    exact: tuple[int, ...] = ()  # where these operands are 16-bit numbers, the result is one
    own_nan: bool = False  # a NaN that it gives is an operand's, or has the fewest digits


OPS: dict[str, ScalarOp] = {
    "add": ScalarOp(
        2, "s", "x + y; or for bool", sign="+", bool_sign="|", cost=SIMPLE, plain=True, own_nan=True
    ),
    "sub": ScalarOp(2, "s", "x - y", sign="-", cost=SIMPLE, plain=True, own_nan=True),
    "mul": ScalarOp(
        2, "s", "x * y; and for bool", sign="*", bool_sign="&", cost=SIMPLE, own_nan=True
    ),
    "div": ScalarOp(2, "f", "x / y", sign="/", cost=SIMPLE, own_nan=True),
    "fma": ScalarOp(3, "f", "x * y + z rounded once", cost=SIMPLE, own_nan=True),
    "multiply_add": ScalarOp(
        3, "f", "x * y + z; rounded once where that is one instruction", cost=SIMPLE, own_nan=True
    ),
    "floor_div": ScalarOp(2, "s", "floor(x / y), as Python's //"),
    "trunc_div": ScalarOp(2, "s", "x / y rounded toward zero"),
    "remainder": ScalarOp(2, "s", "x - y * floor(x / y): the sign of y"),
    "fmod": ScalarOp(2, "s", "x - y * trunc(x / y): the sign of x"),
    "neg": ScalarOp(1, "s", "-x", sign="-", cost=SIMPLE, exact=(0,), own_nan=True),
    "abs": ScalarOp(1, "s", "|x|", cost=SIMPLE, exact=(0,), own_nan=True),
    "sign": ScalarOp(1, "s", "-1, 0 or 1; 0 for NaN"),
    "minimum": ScalarOp(
        2, "s", "the lesser; NaN if either is", cost=SIMPLE, exact=(0, 1), own_nan=True
    ),
    "maximum": ScalarOp(
        2, "s", "the greater; NaN if either is", cost=SIMPLE, exact=(0, 1), own_nan=True
    ),
    "fmin": ScalarOp(2, "s", "the lesser; the other if one is NaN", exact=(0, 1), own_nan=True),
    "fmax": ScalarOp(2, "s", "the greater; the other if one is NaN", exact=(0, 1), own_nan=True),
    "pow": ScalarOp(2, "s", "x to the y; integers wrap, and cut a fraction", cost=LONG),
    "sqrt": ScalarOp(1, "f", "square root", cost=SIMPLE, own_nan=True),
    "rsqrt": ScalarOp(1, "f", "1 / sqrt(x)"),
    "reciprocal": ScalarOp(1, "f", "1 / x", cost=SIMPLE, own_nan=True),
    "exp": ScalarOp(1, "f", "e to the x", cost=LONG),
    "exp2": ScalarOp(1, "f", "2 to the x", cost=LONG),
    "expm1": ScalarOp(1, "f", "exp(x) - 1", cost=LONG),
    "log": ScalarOp(1, "f", "natural logarithm", cost=LONG),
    "log2": ScalarOp(1, "f", "logarithm to base 2", cost=LONG),
    "log10": ScalarOp(1, "f", "logarithm to base 10", cost=LONG),
    "log1p": ScalarOp(1, "f", "log(1 + x)", cost=LONG),
    "sin": ScalarOp(1, "f", "sine", cost=LONG),
    "cos": ScalarOp(1, "f", "cosine", cost=LONG),
    "tan": ScalarOp(1, "f", "tangent", cost=LONG),
    "asin": ScalarOp(1, "f", "inverse sine", cost=LONG),
    "acos": ScalarOp(1, "f", "inverse cosine", cost=LONG),
    "atan": ScalarOp(1, "f", "inverse tangent", cost=LONG),
    "atan2": ScalarOp(2, "f", "angle of the point (y, x), first operand y", cost=LONG),
    "sinh": ScalarOp(1, "f", "hyperbolic sine", cost=LONG),
    "cosh": ScalarOp(1, "f", "hyperbolic cosine", cost=LONG),
    "tanh": ScalarOp(1, "f", "hyperbolic tangent", cost=LONG),
    "asinh": ScalarOp(1, "f", "inverse hyperbolic sine", cost=LONG),
    "acosh": ScalarOp(1, "f", "inverse hyperbolic cosine", cost=LONG),
    "atanh": ScalarOp(1, "f", "inverse hyperbolic tangent", cost=LONG),
    "sigmoid": ScalarOp(1, "f", "1 / (1 + exp(-x))", cost=LONG),
    "erf": ScalarOp(1, "f", "error function", cost=LONG),
    "erfc": ScalarOp(1, "f", "1 - erf(x)", cost=LONG),
    "erfinv": ScalarOp(1, "f", "inverse error function", cost=LONG),
    "lgamma": ScalarOp(1, "f", "log |gamma(x)|", cost=LONG),
    "digamma": ScalarOp(1, "f", "derivative of lgamma", cost=LONG),
    "hypot": ScalarOp(2, "f", "sqrt(x*x + y*y) without overflow", cost=LONG),
    "nextafter": ScalarOp(2, "f", "the next number from x toward y"),
    "copysign": ScalarOp(2, "f", "|x| with the sign of y", cost=SIMPLE, exact=(0,), own_nan=True),
    "signbit": ScalarOp(1, "b", "whether the sign bit is set"),
    "floor": ScalarOp(1, "f", "greatest integer not above x", exact=(0,), own_nan=True),
    "ceil": ScalarOp(1, "f", "least integer not below x", exact=(0,), own_nan=True),
    "trunc": ScalarOp(1, "f", "x without its fraction", exact=(0,), own_nan=True),
    "round": ScalarOp(1, "f", "nearest integer, halves to even", exact=(0,), own_nan=True),
    "round_bf16": ScalarOp(1, "f", "float32 rounded to a bfloat16 number", own_nan=True),
    "round_plain_bf16": ScalarOp(
        1, "f", "the same, where the lower half of a NaN's bits is 0", own_nan=True
    ),
    "round_f16": ScalarOp(1, "f", "float32 rounded to a float16 number", own_nan=True),
    "isnan": ScalarOp(1, "b", "whether x is NaN", cost=SIMPLE),
    "isinf": ScalarOp(1, "b", "whether x is an infinity"),
    "eq": ScalarOp(2, "b", "x == y", sign="==", cost=SIMPLE, plain=True),
    "ne": ScalarOp(2, "b", "x != y", sign="!=", cost=SIMPLE, plain=True),
    "lt": ScalarOp(2, "b", "x < y", sign="<", cost=SIMPLE, plain=True),
    "le": ScalarOp(2, "b", "x <= y", sign="<=", cost=SIMPLE, plain=True),
    "gt": ScalarOp(2, "b", "x > y", sign=">", cost=SIMPLE, plain=True),
    "ge": ScalarOp(2, "b", "x >= y", sign=">=", cost=SIMPLE, plain=True),
    "logical_and": ScalarOp(2, "b", "both; operands bool", sign="&", cost=SIMPLE),
    "logical_or": ScalarOp(2, "b", "either; operands bool", sign="|", cost=SIMPLE),
    "logical_not": ScalarOp(1, "b", "not x; operand bool", sign="!", cost=SIMPLE),
    "gcd": ScalarOp(2, "s", "greatest common divisor; integers"),
    "lcm": ScalarOp(2, "s", "least common multiple; integers"),
    "mantissa": ScalarOp(1, "f", "x as a number of [0.5, 1) in size, times a power of 2"),
    "exponent": ScalarOp(1, "f", "that power; 0 for infinities and NaN"),
    "bitwise_and": ScalarOp(2, "s", "bit by bit and", sign="&"),
    "bitwise_or": ScalarOp(2, "s", "bit by bit or", sign="|"),
    "bitwise_xor": ScalarOp(2, "s", "bit by bit exclusive or", sign="^"),
    "bitwise_not": ScalarOp(1, "s", "bit by bit complement; not for bool", sign="~"),
    "lshift": ScalarOp(2, "s", "x << y; 0 when y is negative or too large"),
    "rshift": ScalarOp(2, "s", "x >> y with sign; y too large shifts all out"),
    "random_below": ScalarOp(2, "s", "of 64 random bits x, a number in [0, y), y unsigned; int64"),
    "random_exp": ScalarOp(1, "f", "exponential, the same bits wherever it is computed", cost=LONG),
}
# Special functions, for floating operands; those of two take an order or a degree among them.
_SPECIAL = {
    1: "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 erfcx i0 i0e i1 i1e log_ndtr "
    "modified_bessel_k0 modified_bessel_k1 ndtri scaled_modified_bessel_k0 "
    "scaled_modified_bessel_k1 spherical_bessel_j0",
    2: "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v "
    "chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he igamma igammac "
    "laguerre_polynomial_l legendre_polynomial_p polygamma shifted_chebyshev_polynomial_t "
    "shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
    "shifted_chebyshev_polynomial_w zeta",
}
SPECIAL = {name: arity for arity, names in _SPECIAL.items() for name in names.split()}
OPS |= {f"special_{name}": ScalarOp(n, "f", name.replace("_", " ")) for name, n in SPECIAL.items()}
# Random numbers, of a seed, an offset and an element (int64), in the dtypes that there are:
# the same bits wherever they are computed, which are those of the core's
# csrc/pytorch/ops/random_numbers.
RANDOM_NUMBERS = {
    "random_word": ((torch.int64,), "32 random bits, in [0, 2^32)"),
    "random_bits": ((torch.int64,), "64 random bits"),
    "random_unit": ((torch.float32, torch.float64), "uniform in [0, 1), of 24 or 53 bits"),
    "random_normal": ((torch.float32, torch.float64), "normal, of mean 0 and deviation 1"),
    "random_exponential": ((torch.float32, torch.float64), "of rate 1; in float32 possibly 0"),
    "random_cauchy": ((torch.float32, torch.float64), "Cauchy's, of median 0 and scale 1"),
}
# Operations that have a function of their own in `ir/scalar.py`, as these random numbers have.
RECORDED = {
    "constant": SIMPLE,
    "index": SIMPLE,
    "load": SIMPLE,
    "to": SIMPLE,
    "bitcast": SHORT,
    "where": SIMPLE,
    "check": SIMPLE,
    "within": SIMPLE,
    "pair": SIMPLE,
    "real": SIMPLE,
    "imag": SIMPLE,
}


def _costing(cost: str) -> frozenset[str]:
    costs = {**{name: op.cost for name, op in OPS.items()}, **RECORDED}
    return frozenset(name for name, c in costs.items() if c == cost)


SIMPLE_OPS, LONG_OPS = _costing(SIMPLE), _costing(LONG)
PLAIN_OPS = frozenset(name for name, op in OPS.items() if op.plain)


@dataclass(frozen=True, slots=True)
class Reduction:
    """What is known of a way to combine many numbers, or what two stores leave in one place."""

    start: str  # what it gives of no numbers: zero, one, ones (all bits), least or greatest
    sign: str = ""  # as of a scalar operation
    bool_sign: str = ""
    op: str = ""  # the function that combines two numbers, where it has another name


REDUCTIONS = {
    "sum": Reduction("zero", "+", "|"),
    "prod": Reduction("one", "*", "&"),
    "any": Reduction("zero", "|"),
    "all": Reduction("ones", "&"),
    "xor": Reduction("zero", "^"),
    "max": Reduction("least", bool_sign="|", op="maximum"),
    "min": Reduction("greatest", bool_sign="&", op="minimum"),
    "logaddexp": Reduction("least"),
}
