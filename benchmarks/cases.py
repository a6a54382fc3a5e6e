"""What the benchmark runs: workloads that are written once and made for any device and compiler.

A case makes its data on the CPU from a fixed seed and then moves it, so every engine gets the same
numbers. Sizes come from one scale, so that results can be checked at other shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from benchmarks import models

Compile = Callable[[Any], Any]


@dataclass
class Work:
    """A case on one engine: `run()` does it once, and gives what is compared between engines.

    `inputs` are the tensors that a run reads, `state` those that it reads and writes (parameters,
    moments), as far as they exist before the first run.
    """

    run: Callable[[], Any]
    inputs: Sequence[torch.Tensor] = ()
    modules: Sequence[nn.Module] = ()
    optimizer: torch.optim.Optimizer | None = None
    bytes: int | None = None  # where the rule of `least_bytes` does not hold

    def state(self) -> list[torch.Tensor]:
        """What a training step reads and writes: parameters and the optimizer's moments."""
        found = [p for m in self.modules for p in m.parameters()]
        if self.optimizer is not None:
            found = [p for g in self.optimizer.param_groups for p in g["params"]]
            found += [
                s
                for s in tree_leaves(list(self.optimizer.state.values()))
                if isinstance(s, torch.Tensor)
            ]
        return found

    def kept(self) -> list[torch.Tensor]:
        """Tensors that a run leaves behind: gradients and the optimizer's moments."""
        held = [*self.inputs, *self.state()]
        given = {t.data_ptr() for t in self.inputs}
        made = [t.grad for t in held if t.is_leaf and t.grad is not None]
        made = [t for t in made if t.data_ptr() not in given]
        if self.optimizer is not None:
            made += [t for t in self.state() if not isinstance(t, nn.Parameter)]
        return made

    def least_bytes(self, results: Any) -> int:
        """What any implementation moves: inputs read, results written, state read and written if
        it is trained and else read."""
        if self.bytes is not None:
            return self.bytes
        passes = 2 if self.optimizer is not None else 1
        state = {t.data_ptr(): t.nbytes for t in self.state()}
        wrote = [t for t in tree_leaves(results) if isinstance(t, torch.Tensor)]
        read = sum(t.nbytes for t in self.inputs)
        return (
            read
            + sum(t.nbytes for t in wrote if t.data_ptr() not in state)
            + passes * sum(state.values())
        )


@dataclass
class Bench:
    """Where and how a case is made: the scale of its sizes, device, dtype, and the compiler, a
    function that takes a function or a module (eager: gives it back as it is)."""

    scale: float
    device: torch.device
    dtype: torch.dtype
    compile: Compile
    random: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def side(self, n: int) -> int:
        """A side of a square whose area grows with the scale; a multiple of 16."""
        return max(16, int(n * self.scale**0.5) // 16 * 16)

    def randn(self, *sizes: int) -> torch.Tensor:
        """Normal numbers on the device."""
        return torch.randn(*sizes, generator=self.random).to(self.device, self.dtype)

    def matrix(self, rows: int = 4096, columns: int = 4096) -> torch.Tensor:
        """Normal numbers; both sides grow with the scale."""
        return self.randn(self.side(rows), self.side(columns))

    def integers(self, limit: int, *sizes: int) -> torch.Tensor:
        """Whole numbers below the limit, on the device."""
        return torch.randint(0, limit, sizes, generator=self.random).to(self.device)

    def model(self, make: Callable[[], nn.Module]) -> nn.Module:
        """A model with random weights, the same for every engine."""
        torch.manual_seed(0)
        return make().to(self.device, self.dtype)

    def function(
        self, f: Callable[..., Any], *inputs: torch.Tensor, bytes: int | None = None
    ) -> Work:
        """Work that calls a function without gradients."""
        compiled = self.compile(f)

        def run() -> Any:
            with torch.no_grad():
                return compiled(*inputs)

        return Work(run, inputs, bytes=bytes)

    def inference(self, make: Callable[[], nn.Module], *inputs: torch.Tensor) -> Work:
        """Work that calls a model without gradients."""
        model = self.model(make).eval()
        work = self.function(model, *inputs)
        work.modules = [model]
        return work

    def training(self, make: Callable[[], nn.Module], *inputs: torch.Tensor) -> Work:
        """Work that does a training step: forward (the model gives its loss), backward, AdamW.

        The result is the loss, and the gradients.
        """
        model = self.model(make)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        compiled, step = self.compile(model), self.compile(optimizer.step)

        def run() -> Any:
            optimizer.zero_grad()
            loss = compiled(*inputs)
            loss.backward()
            step()
            return loss.detach(), [p.grad for p in model.parameters()]

        return Work(run, inputs, [model], optimizer)


@dataclass(frozen=True)
class Case:
    """A workload by name. `tolerance` bounds errors relative to the largest number of a result."""

    name: str
    make: Callable[[Bench], Work]
    dtype: torch.dtype = torch.float32
    tolerance: float = 1e-4


def chain(b: Bench) -> Work:
    """Five pointwise ops over one large array."""
    x = b.randn(int(16 * 2**20 * b.scale))
    return b.function(lambda x: torch.sigmoid(torch.tanh(x * 2 + 1).exp()) - x, x)


def softmax(b: Bench) -> Work:
    """Over the rows of a matrix."""
    return b.function(lambda x: torch.softmax(x, -1), b.matrix(8192, 1024))


def log_softmax(b: Bench) -> Work:
    """Over the rows of a matrix."""
    return b.function(lambda x: torch.log_softmax(x, -1), b.matrix(8192, 1024))


def layer_norm(b: Bench) -> Work:
    """With a residual."""
    x, y = b.matrix(8192, 1024), b.matrix(8192, 1024)
    weight, bias = b.randn(x.shape[1]), b.randn(x.shape[1])
    return b.function(lambda x, y, w, c: F.layer_norm(x + y, x.shape[1:], w, c), x, y, weight, bias)


def sum_all(b: Bench) -> Work:
    """To one number."""
    return b.function(lambda x: x.sum(), b.matrix())


def sum_rows(b: Bench) -> Work:
    """Along memory."""
    return b.function(lambda x: x.sum(1), b.matrix())


def sum_columns(b: Bench) -> Work:
    """Across memory."""
    return b.function(lambda x: x.sum(0), b.matrix())


def sum_middle(b: Bench) -> Work:
    """Over the middle of three axes."""
    return b.function(lambda x: x.sum(1), b.randn(b.side(256), b.side(256), 256))


def variance(b: Bench) -> Work:
    """Of rows."""
    return b.function(lambda x: x.var(1), b.matrix())


def transposed_read(b: Bench) -> Work:
    """Read across, write along."""
    return b.function(lambda x: (x.t() + 1).contiguous(), b.matrix())


def transposed_write(b: Bench) -> Work:
    """Read along, write across."""
    x = b.matrix()
    out = torch.zeros_like(x)
    return b.function(lambda x, out: out.t().copy_(x * 2), x, out, bytes=2 * x.nbytes)


def sliced_read(b: Bench) -> Work:
    """Every other column of three shifted windows."""
    return b.function(lambda x: x[1:-1, ::2] * 2 + x[:-2, ::2] + x[2:, ::2], b.matrix())


def sliced_write(b: Bench) -> Work:
    """Into every other column of a window."""

    def f(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        out[1:-1, ::2] = x[1:-1, ::2] * 2 + 1
        return out

    x = b.matrix()
    # Whole lines of memory: read, and read again where they are written in part.
    return b.function(f, x, torch.zeros_like(x), bytes=3 * x.nbytes)


def gather(b: Bench) -> Work:
    """Elements of rows by index."""
    x = b.matrix()
    return b.function(lambda x, i: x.gather(1, i) * 2, x, b.integers(x.shape[1], *x.shape))


def scatter(b: Bench) -> Work:
    """Rows added by index."""
    x = b.matrix(8192, 1024)
    rows = b.integers(x.shape[0], x.shape[0])
    return b.function(lambda x, i: torch.zeros_like(x).index_add(0, i, x), x, rows)


def embedding(b: Bench) -> Work:
    """Rows of a table, and a sum."""
    table = b.randn(b.side(32000), 512)
    at = b.integers(table.shape[0], 16, b.side(512))
    rows = 2 * at.numel() * table[0].nbytes
    return b.function(lambda t, i: F.embedding(i, t) + 1, table, at, bytes=rows + at.nbytes)


def cross_entropy(b: Bench) -> Work:
    """Forward and backward over a vocabulary."""
    x = b.matrix(1024, 16384).requires_grad_()
    y = b.integers(x.shape[1], x.shape[0])
    compiled = b.compile(F.cross_entropy)

    def run() -> Any:
        x.grad = None
        loss = compiled(x, y)
        loss.backward()
        return loss.detach(), x.grad

    return Work(run, [x, y])


def adamw(b: Bench) -> Work:
    """One step of torch.optim.AdamW over 100 tensors."""
    side = b.side(256)
    parameters = [nn.Parameter(b.randn(side, side)) for _ in range(100)]
    for p in parameters:
        p.grad = b.randn(side, side)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    step = b.compile(optimizer.step)

    def run() -> Any:
        step()
        return [p.detach() for p in parameters]

    return Work(run, [p.grad for p in parameters], (), optimizer)


def small_ops(b: Bench) -> Work:
    """200 ops that depend on each other, on 16 elements."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for _ in range(100):
            x = x * y
            x = x + y
        return x

    return b.function(f, b.randn(16), b.randn(16).abs() / 4)


def mlp(b: Bench) -> Work:
    """Three layers, a batch of 256."""
    width = b.side(512)
    return b.training(lambda: models.mlp(width), b.randn(256, width), b.integers(10, 256))


def gpt(b: Bench) -> Work:
    """Two layers of width 256, a vocabulary of 4096."""
    length = b.side(128)
    at = b.integers(4096, 4, length)
    return b.training(lambda: models.GPT(4096, 256, 8, 2, length), at, at.roll(-1, 1))


def convnet(b: Bench) -> Work:
    """Convolutions with batch norm and pooling."""
    side = b.side(64)
    return b.training(models.convnet, b.randn(16, 3, side, side), b.integers(10, 16))


def lstm(b: Bench) -> Work:
    """torch.nn.LSTM over 32 steps."""
    return b.training(
        lambda: models.Recurrent(b.side(256)), b.randn(16, 32, b.side(256)), b.integers(10, 16)
    )


def bert(b: Bench) -> Work:
    """BERT of transformers with two layers of width 768."""
    return b.inference(models.bert, b.integers(8192, 2, b.side(128)))


def llama(b: Bench) -> Work:
    """Llama of transformers with two layers of width 512."""
    return b.inference(models.llama, b.integers(8192, 2, b.side(128)))


def token(b: Bench) -> Work:
    """A layer of a model that generates text: one row times the weights."""
    return b.function(F.linear, b.randn(1, b.side(4096)), b.matrix())


def token_int8(b: Bench) -> Work:
    """The same with weights of 8 bits, and a scale for each row of them."""
    weights = b.integers(256, b.side(4096), b.side(4096)).sub(128).to(torch.int8)
    scales = b.randn(b.side(4096)) * 0.01
    return b.function(
        lambda x, w, s: F.linear(x, w.to(x.dtype)) * s, b.randn(1, b.side(4096)), weights, scales
    )


def token_int4(b: Bench) -> Work:
    """The same with weights of 4 bits, as PyTorch packs them, in groups of 128."""
    side, group = max(b.side(4096) // 128, 1) * 128, 128
    weights = torch.randint(0, 16, (side, side), generator=b.random, dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weights, 1).to(b.device)
    scales = b.randn(side // group, side, 2) * 0.01
    return b.function(
        lambda x, w, s: torch.ops.aten._weight_int4pack_mm_for_cpu(x, w, group, s),
        b.randn(1, side), packed, scales,
    )  # fmt: skip


HALF = {"dtype": torch.bfloat16, "tolerance": 5e-2}

CASES = [
    Case("pointwise chain", chain),
    Case("softmax", softmax),
    Case("log softmax", log_softmax),
    Case("layer norm", layer_norm),
    Case("sum all", sum_all),
    Case("sum rows", sum_rows),
    Case("sum columns", sum_columns),
    Case("sum middle", sum_middle),
    Case("variance", variance),
    Case("transposed read", transposed_read),
    Case("transposed write", transposed_write),
    Case("sliced read", sliced_read),
    Case("sliced write", sliced_write),
    Case("gather", gather),
    Case("scatter add", scatter),
    Case("embedding", embedding),
    Case("cross entropy", cross_entropy),
    Case("adamw", adamw),
    Case("200 small ops", small_ops),
    Case("mlp", mlp, tolerance=1e-3),
    Case("gpt", gpt, tolerance=1e-3),
    Case("convnet", convnet, tolerance=5e-2),  # what libraries of convolutions differ by
    Case("lstm", lstm, tolerance=1e-3),
    Case("bert", bert, tolerance=1e-3),
    Case("llama", llama, tolerance=1e-3),
    Case("gpt bf16", gpt, **HALF),
    Case("bert bf16", bert, **HALF),
    Case("llama bf16", llama, **HALF),
    Case("token bf16", token, **HALF),
    Case("token int8", token_int8, **HALF),
    Case("token int4", token_int4, **HALF),
]
