"""What a target has beside its driver where its kernels are generated.

The language is C, and the host's compiler stands in for the hardware's: what a newcomer changes is
how a node, a dtype and a function are spelled, and what builds the text.
"""

from torch_tenon.targets.starts.driver import LAUNCH

_IMPORTS = """import ctypes
import itertools
import math
import shlex
import subprocess
import tempfile
import threading
from pathlib import Path

import torch

import torch_tenon
from torch_tenon import config
from torch_tenon.compiler.backend import Backend
from torch_tenon.compiler.capabilities import Capabilities
from torch_tenon.compiler.kernel import CHECKS, STATUS_WORDS, Kernel
from torch_tenon.compiler.loops.lower import lower
from torch_tenon.compiler.loops.parameters import parameters
from torch_tenon.compiler.loops.place import place_values
from torch_tenon.compiler.loops.tree import (
    Accumulate,
    Accumulator,
    Barrier,
    Check,
    Constant,
    Declare,
    For,
    If,
    Let,
    Load,
    Read,
    Store,
)
from torch_tenon.ir.index import Expr, Symbol
from torch_tenon.ir.scalar_ops import OPS, REDUCTIONS
from torch_tenon.ir.values import Buffer, neutral
from torch_tenon.targets.target import CompileError, CompilerMissing, Passed, Target
"""

_LANGUAGE = r'''
# The language. TODO: how yours spells dtypes and functions. What is not here the host computes.

TYPES = {
    torch.bool: "bool",
    torch.uint8: "uint8_t",
    torch.int8: "int8_t",
    torch.int16: "int16_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
    torch.float32: "float",
    torch.float64: "double",
}

# Of floating point: functions of the language, by the op that they compute.
FUNCTIONS = {
    op: op
    for op in (
        "acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf erfc exp exp2 expm1 "
        "floor fma fmax fmin fmod hypot lgamma log log10 log1p log2 nextafter pow sin sinh sqrt "
        "tan tanh trunc"
    ).split()
} | {"abs": "fabs", "round": "rint"}

# Functions of our own, for all dtypes but bool. A kernel goes on after a failed check, so that
# division by zero must not end it.
OWN = (
    "abs floor_div fmax fmin fmod gcd lshift maximum minimum pow remainder rshift sign trunc_div"
).split()
OWN_OF_FLOATS = "floor_div logaddexp maximum minimum remainder rsqrt sigmoid sign trunc_div".split()

HEADER = r"""
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#define NUMBERS(T, S)                                                                        \
  static T maximum_##S(T x, T y) { return x != x || x > y ? x : y; }                         \
  static T minimum_##S(T x, T y) { return x != x || x < y ? x : y; }                         \
  static T sign_##S(T x) { return (T)((x > 0) - (x < 0)); }

#define INTEGERS(T, S)                                                                       \
  NUMBERS(T, S)                                                                              \
  static T abs_##S(T x) { return x < 0 ? (T)(0 - (uint64_t)x) : x; }                         \
  static T fmax_##S(T x, T y) { return x > y ? x : y; }                                      \
  static T fmin_##S(T x, T y) { return x < y ? x : y; }                                      \
  static bool divides_##S(T y) { return y != 0 && (y > 0 || y != (T)-1); }                   \
  static T trunc_div_##S(T x, T y) {                                                         \
    return divides_##S(y) ? x / y : y ? (T)(0 - (uint64_t)x) : 0;                            \
  }                                                                                          \
  static T fmod_##S(T x, T y) { return divides_##S(y) ? x % y : 0; }                         \
  static T remainder_##S(T x, T y) {                                                         \
    const T r = fmod_##S(x, y);                                                              \
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;                                         \
  }                                                                                          \
  static T floor_div_##S(T x, T y) {                                                         \
    const T r = fmod_##S(x, y), q = trunc_div_##S(x, y);                                     \
    return r != 0 && (r < 0) != (y < 0) ? q - 1 : q;                                         \
  }                                                                                          \
  static T gcd_##S(T x, T y) {                                                               \
    while (y != 0) {                                                                         \
      const T r = fmod_##S(x, y);                                                            \
      x = y;                                                                                 \
      y = r;                                                                                 \
    }                                                                                        \
    return abs_##S(x);                                                                       \
  }                                                                                          \
  static T pow_##S(T x, T y) {                                                               \
    if (y < 0)                                                                               \
      return x == 1 ? 1 : x == (T)-1 ? (y % 2 ? x : 1) : 0;                                  \
    uint64_t found = 1, factor = (uint64_t)x;                                                \
    for (; y; y >>= 1, factor *= factor)                                                     \
      found *= y & 1 ? factor : 1;                                                           \
    return (T)found;                                                                         \
  }                                                                                          \
  static T lshift_##S(T x, T y) {                                                            \
    return y < 0 || y >= (T)(8 * sizeof(T)) ? 0 : (T)((uint64_t)x << y);                     \
  }                                                                                          \
  static T rshift_##S(T x, T y) {                                                            \
    return y < 0 || y >= (T)(8 * sizeof(T)) ? (x < 0 ? (T)-1 : 0) : x >> y;                  \
  }

#define FLOATS(T, S, F)                                                                      \
  NUMBERS(T, S)                                                                              \
  static T trunc_div_##S(T x, T y) { return trunc##F(x / y); }                               \
  static T remainder_##S(T x, T y) {                                                         \
    const T r = fmod##F(x, y);                                                               \
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;                                         \
  }                                                                                          \
  static T floor_div_##S(T x, T y) {                                                         \
    if (y == 0)                                                                              \
      return x / y;                                                                          \
    const T r = fmod##F(x, y), q = (x - r) / y - (r != 0 && (r < 0) != (y < 0));             \
    return q == 0 ? copysign##F(0, x / y) : floor##F(q) + (q - floor##F(q) > (T)0.5);        \
  }                                                                                          \
  static T rsqrt_##S(T x) { return 1 / sqrt##F(x); }                                         \
  static T sigmoid_##S(T x) { return 1 / (1 + exp##F(-x)); }                                 \
  static T logaddexp_##S(T x, T y) {                                                         \
    const T most = maximum_##S(x, y);                                                        \
    return isinf(most) ? most : most + log1p##F(exp##F(-fabs##F(x - y)));                    \
  }

INTEGERS(uint8_t, uint8_t)
INTEGERS(int8_t, int8_t)
INTEGERS(int16_t, int16_t)
INTEGERS(int32_t, int32_t)
INTEGERS(int64_t, int64_t)
FLOATS(float, float, f)
FLOATS(double, double, )
"""


def known(table, key):
    """What a table has for a key. Where it has nothing the host runs the group."""
    if key not in table:
        raise NotImplementedError(f"no {key} here")
    return table[key]


class Generator:
    """The text of a kernel, with a case for each node of a plain loop tree (docs/generator.md)."""

    def __init__(self, tree):
        self.found, self.counter = parameters(tree), itertools.count()
        self.names = {s: f"n{k}" for k, s in enumerate(self.found.sizes)}
        self.memory = {pointer: f"m{k}" for k, pointer in enumerate(self.found.pointers)}
        names = enumerate(self.names.values())
        lines = [f"const int64_t {name} = numbers[{k}];" for k, name in names]
        for (storage, dtype), name in self.memory.items():
            place = self.found.storages.index(storage)
            lines.append(f"{known(TYPES, dtype)} *{name} = memory[{place}];")
        lines += self.body(tree.body)
        head = "void kernel(void *const *memory, const int64_t *numbers, int64_t *status) {"
        self.text = "\n".join([head, *lines, "}"])

    def body(self, statements):
        return [line for s in statements for line in self.statement(s)]

    def statement(self, s):
        match s:
            case For():  # parallel, reduce and serial ones alike: one iteration after the other
                name, start = self.new(s.symbol, "i"), self.greatest(s.starts)
                ends = " && ".join(f"{name} < {self.index(e)}" for e in s.stops)
                head = f"for (int64_t {name} = {start}; {ends}; {name} += {s.step}) {{"
                return [head, *self.body(s.body), "}"]
            case If():
                return [f"if ({self.operand(s.condition)}) {{", *self.body(s.body), "}"]
            case Let():
                value = self.compute(s)
                lines = [f"const {known(TYPES, s.dtype)} {self.new(s, 't')} = {value};"]
                if s.symbol is not None:
                    self.names[s.symbol] = self.names[s]
                return lines
            case Load():
                value = self.element(s.memory, s.index)
                if s.mask is not None:  # where it does not hold, memory is not touched
                    value = f"{self.operand(s.mask)} ? {value} : {self.operand(s.other)}"
                return [f"const {known(TYPES, s.dtype)} {self.new(s, 't')} = {value};"]
            case Declare(array=a):
                zero = neutral(a.combine, a.dtype) if isinstance(a, Accumulator) else 0
                start = Constant(zero, a.dtype) if s.initial is None else s.initial
                length, name = a.length or 1, self.new(a, "a")
                fill = f"for (int k = 0; k < {length}; ++k) {name}[k] = {self.operand(start)};"
                return [f"{known(TYPES, a.dtype)} {name}[{length}];", fill]
            case Accumulate(accumulator=a):
                return [self.combine(a.combine, a.dtype, self.element(a, s.index), s.value)]
            case Store(combine="store"):
                return [f"{self.element(s.memory, s.index)} = {self.operand(s.value)};"]
            case Store():
                place = self.element(s.memory, s.index)
                return [self.combine(s.combine, dtype_of(s.value), place, s.value)]
            case Check():  # the kernel goes on: `within` gives an index that is there
                low, high, size = self.operand(s.low), self.operand(s.high), self.index(s.size)
                at = STATUS_WORDS * self.found.failures.index(s.failure)
                told = CHECKS[s.failure.message], f"{low} < 0 ? {low} : {high}", size
                lines = [f"status[{at + k}] = {word};" for k, word in enumerate(told)]
                return [f"if ({low} < 0 || {high} >= {size}) {{", *lines, "}"]
            case Barrier():
                return []  # one iteration runs after the other
        raise NotImplementedError(f"{type(s).__name__} here")

    def combine(self, name, dtype, place, value):
        row = known(REDUCTIONS, name)
        sign = row.bool_sign or row.sign if dtype is torch.bool else row.sign
        x = [place, self.operand(value)]
        combined = f" {sign} ".join(x) if sign else self.call(row.op or name, dtype, x)
        return f"{place} = {combined};"

    def compute(self, s):
        x = [self.operand(a) for a in s.args]
        match s.op:
            case "index" | "copy":
                return x[0]
            case "to":
                return f"({known(TYPES, s.dtype)}){x[0]}"
            case "where":
                return f"{x[0]} ? {x[1]} : {x[2]}"
            case "within":
                return f"0 <= {x[0]} && {x[0]} < {x[1]} ? {x[0]} : 0"
            case "reciprocal":
                return f"1 / {x[0]}"
            case "isnan" | "isinf" | "signbit" if dtype_of(s.args[0]).is_floating_point:
                return f"{s.op}({x[0]}) != 0"
        row = known(OPS, s.op)
        if row.sign:
            sign = row.bool_sign or row.sign if s.dtype is torch.bool else row.sign
            return f"{sign}{x[0]}" if row.arity == 1 else f"{x[0]} {sign} {x[1]}"
        return self.call(s.op, s.dtype, x)

    def call(self, op, dtype, x):
        if dtype is not torch.bool and op in (OWN_OF_FLOATS if dtype.is_floating_point else OWN):
            name = f"{op}_{known(TYPES, dtype)}"
        elif dtype.is_floating_point:
            name = known(FUNCTIONS, op) + ("f" if dtype is torch.float32 else "")
        else:
            raise NotImplementedError(f"no {op} of {dtype} here")
        return f"{name}({', '.join(x)})"

    def operand(self, x):
        match x:
            case Constant():
                return self.number(x.value, x.dtype)
            case Read():
                return self.element(x.array, x.index)
            case Expr() | int():
                return self.index(x)
        return self.names[x]

    def number(self, value, dtype):
        if not dtype.is_floating_point:
            return f"(({known(TYPES, dtype)}){int(value) % 2**64}ULL)"
        if not math.isfinite(value):
            return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "(-INFINITY)"
        return f"(({known(TYPES, dtype)}){float(value)!r})"

    def element(self, memory, index):
        is_buffer = isinstance(memory, Buffer)
        name = self.memory[memory.storage, memory.dtype] if is_buffer else self.names[memory]
        return f"{name}[{self.index(index)}]"

    def index(self, e):
        """An index expression: a number, or a sum of products."""
        if isinstance(e, int):
            return f"{e}LL"
        products = ((f"{k}LL", *map(self.factor, factors)) for factors, k in e.terms.items())
        return f"({' + '.join(' * '.join(product) for product in products)})"

    def factor(self, x):
        if isinstance(x, Symbol):
            return self.names[x]
        rounded = {"//": "floor_div_int64_t", "%": "remainder_int64_t"}[x.sign]
        return f"{rounded}({self.index(x.numerator)}, {self.index(x.divisor)})"

    def greatest(self, several):
        first, *more = map(self.index, several)
        for e in more:
            first = f"maximum_int64_t({first}, {e})"
        return first

    def new(self, x, label):
        # A symbol may be bound again, by a loop that comes later.
        self.names[x] = f"{label}{next(self.counter)}"
        return self.names[x]


def dtype_of(operand):
    """An index expression that stands for an operand is an int64."""
    return getattr(operand, "dtype", torch.int64)


# What a launch names, by number. A kernel stays for the life of the process.
KERNELS = []
numbers_of = {}  # by text
folder = tempfile.TemporaryDirectory()
lock = threading.Lock()


def build(texts):
    """Numbers of the kernels of these texts. Those that are new are compiled together."""
    # TODO: your compiler and loader. One that is called once for many kernels saves most.
    with lock:
        new = [text for text in dict.fromkeys(texts) if text not in numbers_of]
        if new:
            path = Path(folder.name) / f"kernels{len(KERNELS)}.c"
            parts = [
                f"#define kernel kernel{k}\n{text}\n#undef kernel" for k, text in enumerate(new)
            ]
            path.write_text("\n".join([HEADER, *parts]))
            compiler = config.CC.read()
            if compiler is None:
                raise CompilerMissing("no C compiler is here: `apt-get install gcc`")
            options = "-O2 -fwrapv -ffp-contract=off -fno-math-errno -w -shared -fPIC".split()
            command = [*shlex.split(compiler), *options, path, "-o", path.with_suffix(".so"), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise CompileError(f"{path}: {done.stderr}\n{path.read_text()}", True)
            library = ctypes.CDLL(str(path.with_suffix(".so")))
            for k, text in enumerate(new):
                numbers_of[text] = len(KERNELS)
                KERNELS.append(library[f"kernel{k}"])
                KERNELS[-1].argtypes, KERNELS[-1].restype = [ctypes.c_void_p] * 3, None
        return [numbers_of[text] for text in texts]


class @CLASS@Backend(Backend):
    """The target's part of the compiler. Its methods may be called from several threads."""

    name = "@NAME@"
    # What kernels load, store and compute in. What needs other dtypes the host computes.
    capabilities = Capabilities(storage=frozenset(TYPES), arithmetic=frozenset(TYPES))

    def kernel(self, group, kept):
        """The kernel of ops that are fused."""
        generator = Generator(place_values(lower(group, kept)))
        found = generator.found
        kernel = Kernel.of(group, kept, generator.text, found.storages, found.sizes)
        kernel.checks = [failure.calls for failure in found.failures]
        return kernel

    def handwritten(self, code):
        """A kernel by hand has the form of a generated one, and a name of its own."""
        return f"#define {code.entry} kernel\n{code.text}\n#undef {code.entry}"

    def compile(self, kernels):
        """What the queue's `launch` gets."""
        return build([kernel.source for kernel in kernels])


# A kernel of the hardware's library. TODO: your own product of matrices.
MATMUL = """
void kernel(void *const *memory, const int64_t *numbers, int64_t *status) {
  float *result = memory[0];
  const float *a = memory[1], *b = memory[2];
  const int64_t rows = numbers[0], length = numbers[1], columns = numbers[2];
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < length; ++k)
        sum += a[i * length + k] * b[k * columns + j];
      result[i * columns + j] = sum;
    }
}"""


def mm(a, b):
    """`aten::mm` by the kernel, or NotImplemented for what the host multiplies or refuses."""
    fits = a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0]
    if not fits or {a.dtype, b.dtype} != {torch.float32} or 0 in (*a.shape, *b.shape):
        return NotImplemented
    result = a.new_empty(a.shape[0], b.shape[1])
    (kernel,) = build([MATMUL])
    # Enqueued behind what makes the operands; nobody waits.
    torch_tenon.launch(kernel, [result, a.contiguous(), b.contiguous()], [*a.shape, b.shape[1]])
    return result
'''

PARTS = {
    "@WHAT@": "Loops and\n"
    "reductions run fused, by kernels that are generated in C. Products of matrices run by a\n"
    "kernel of its own, and every other op falls back to the host.",
    "@IMPORTS@": _IMPORTS,
    "@KERNELS@": _LANGUAGE,
    "@LAUNCH@": LAUNCH,
    "@LIBRARY@": '{"aten::mm": mm}',
    "@BACKEND@": "@CLASS@Backend()",
}
