"""Making a random program: statements are tried on the CPU while they are chosen, so that most of
them are valid, and what they make is known to those that follow."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Collection

import torch

from torch_tenon.testing.fuzz.choose import Nothing
from torch_tenon.testing.fuzz.computing import Computing
from torch_tenon.testing.fuzz.disturbing import Disturbing
from torch_tenon.testing.fuzz.memory import overlaps
from torch_tenon.testing.fuzz.operations import words
from torch_tenon.testing.fuzz.program import Program
from torch_tenon.testing.fuzz.writing import Writing

_MOST_VARIABLES = 14


def generate(seed: int, length: int = 25, kinds: Collection[str] = ()) -> Program:
    """A program of about `length` statements; the same seed gives the same program. `kinds`: which
    of `SHARES` it may have beside plain statements."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Generator(random.Random(seed), length).program(kinds)


def is_leaf(t: torch.Tensor) -> bool:
    """Whether gradients arrive at it."""
    try:
        return t.requires_grad and t.is_leaf
    except RuntimeError:  # a view whose history autograd cannot tell any more
        return False


class _Generator(Disturbing, Computing, Writing):
    def program(self, kinds: Collection[str]) -> Program:
        self.plain = self._makers()
        self.makers = self.plain + self._disturbers(kinds)
        for _ in range(self.rng.randint(1, 3)):
            self._try(self.make)
        while len(self.statements) < self.length:
            if len(self.where) > _MOST_VARIABLES:
                self._try(self.delete)
            if len(self.statements) > 4 and self.rng.random() < 0.04:
                self.repeat()
            self._any_of(self.makers)
        return Program(self.statements)

    def _makers(self) -> list[tuple[Callable[[], None], float]]:
        rng = self.rng

        def about(weight: float) -> float:
            return weight * rng.choice([0.2, 1.0, 1.0, 3.0])

        return [
            (self.make, 1.0),
            (self.unary, about(2.0)),
            (self.binary, about(3.0)),
            (self.number, about(2.0)),
            (self.ternary, about(1.0)),
            (self.cast, about(0.7)),
            (self.reduce, about(2.0)),
            (self.matrix, about(1.0)),
            (self.indexing, about(2.0)),
            (self.view, about(4.0)),
            (self.complex_numbers, about(1.0)),
            (self.write, about(5.0)),
            (self.out, about(1.0)),
            (self.foreach, about(0.6)),
            (self.structure, about(0.5)),
            (self.copies, about(0.7)),
            (self.read, about(1.0)),
            (self.delete, about(1.0)),
            (self.gradient, about(1.5)),
        ]

    def make(self) -> None:
        rng, place = self.rng, self.rng.choice(self.devices)
        kind = rng.choice(["made"] * 6 + ["full", "arange", "linspace", "zeros", "scalar", "other"])
        shape = self.shape()
        if kind == "made":
            where = "H" if rng.random() < 0.08 else place
            self.add("made", self.seed(), shape, self.dtype(), where, place=where)
        elif kind == "arange":
            step = rng.choice([1, 2, 3])
            self.add("arange", 0, step * rng.choice(self.sizes), step, place, place=place)
        elif kind == "linspace":
            self.add("linspace", -1, 2, rng.choice(self.sizes), place, place=place)
        elif kind == "scalar":
            self.add("scalar", rng.choice(["2.5", "3", "-0.5", "True"]), place="H")
        elif kind == "other":
            other = rng.choice(
                ["eye", "tensor", "ones_like", "full_like", "rand_zero", "new_zeros"]
            )
            if other == "eye":
                self.add("eye", *rng.choices(self.sizes, k=2), place, place=place)
            elif other == "tensor":
                values = [rng.randint(0, 5) for _ in range(rng.choice(self.sizes))]
                self.add("tensor", values, self.dtype(), place, place=place)
            elif other == "full_like":
                x = self.pick()
                self.add("full_like", x, self.number_text(self.tensor(x)))
            elif other == "new_zeros":
                self.add("new_zeros", self.pick(), shape)
            else:
                self.add(other, self.pick(torch.is_floating_point))
        else:
            operation = rng.choice(["full", "empty_fill"]) if kind == "full" else kind
            value = rng.choice(["2", "0.5", "1", "0"])
            self.add(operation, shape, value, self.dtype(), place, place=place)

    # Structure, devices, reading, gradients

    def structure(self) -> None:
        self.add(self.rng.choice(["clone", "contiguous", "zeros_like"]), self.pick())

    def copies(self) -> None:
        rng = self.rng
        x = self.choice(self.names())
        if rng.random() < 0.6:
            place = rng.choice([*self.devices, "H", "D0"])
            self.add("move", x, place, place=place)
            return
        x = self.target()
        t = self.tensor(x)
        y = self.choice(
            self.names(
                lambda y: (
                    self.broadcastable(x, into=True)(y)
                    and not overlaps(t, y)
                    and (t.is_floating_point() or not y.is_floating_point())
                )
            )
        )
        self.add("copy_across", x, y, result=False)

    def read(self) -> None:
        rng = self.rng
        kind = rng.choice(["item", "item_float", "read", "read", "repr", "any", "tolist", "commit"])
        if kind == "commit":
            self.add("commit", result=False)
        elif kind == "read":
            self.add("read", self.choice(self.names()), result=False)
        elif kind in ("item", "item_float"):
            self.add(kind, self.pick(lambda t: t.numel() > 0))
        else:
            self.add(kind, self.pick(), result=False)

    def delete(self) -> None:
        if len(self.where) < 3:
            raise Nothing
        name = self.rng.choice(list(self.where))
        self.add("del", name, result=False)
        self.where.pop(name)

    def gradient(self) -> None:
        rng = self.rng
        leaves = self.names(is_leaf)
        if not leaves or rng.random() < 0.15:
            self.add("leaf", self.pick(torch.is_floating_point))
            return
        kind = rng.choice(
            words(
                """
    backward backward_mean backward grad grad_of grad_of clear_grad mse_loss cross_entropy sgd adamw
    use use use
    """
            )
        )
        results = [n for n in self.names(lambda t: t.requires_grad) if n not in leaves]
        with_grad = [n for n in leaves if self.tensor(n).grad is not None]
        if kind in ("backward", "backward_mean"):
            self.add(kind, self.choice(results), result=False)
        elif kind == "grad":
            x = self.choice(results)
            self.add(kind, x, self.choice(leaves))
        elif kind == "grad_of":
            self.add(kind, self.choice(with_grad))
        elif kind == "clear_grad":
            self.add(kind, self.choice(with_grad), result=False)
        elif kind == "mse_loss":
            x = self.choice(results)
            t = self.tensor(x)
            y = self.beside(x, lambda y: y.shape == t.shape and y.dtype is t.dtype)
            self.add(kind, x, y)
        elif kind == "cross_entropy":
            x = self.pick(lambda t: t.requires_grad and t.dim() == 2 and t.numel() > 0)
            self.add(kind, x, self.seed(), f"({self.tensor(x).shape[0]},)")
        elif kind in ("sgd", "adamw"):
            extra = [rng.choice(["0", "0.9"])] if kind == "sgd" else []
            self.add(
                kind, self.choice(with_grad), rng.choice(["0.1", "0.01"]), *extra, result=False
            )
        else:
            x = rng.choice(leaves + results)
            name = rng.choice(words("sin tanh sigmoid relu sqrt exp mul add matmul sum softmax"))
            if name in ("mul", "add", "matmul"):
                self.add(name, x, self.beside(x, self.broadcastable(x)))
            elif name == "softmax":
                self.add(name, x, self.dim(self.tensor(x)))
            else:
                self.add(name, x)
