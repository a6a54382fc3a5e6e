"""Statements that compute: pointwise ops, reductions, matrices, indexing, views."""

from __future__ import annotations

import torch

from torch_tenon.testing.fuzz import operations as ops
from torch_tenon.testing.fuzz.choose import DTYPES, FLOATS, Chooser, Nothing
from torch_tenon.testing.fuzz.operations import words


class Computing(Chooser):
    """Kinds of statements that make a new variable."""

    def unary(self) -> None:
        if self.rng.random() < 0.3:
            name = self.rng.choice(ops.ACTIVATIONS)
            self.add(f"F_{name}", self.pick(torch.is_floating_point))
        else:
            self.add(self.rng.choice(ops.UNARY), self.pick())

    def binary(self) -> None:
        x = self.pick()
        y = self.beside(x, self.broadcastable(x))
        integral = not (self.tensor(x).is_floating_point() or self.tensor(y).is_floating_point())
        if integral and self.rng.random() < 0.3:
            self.add(self.rng.choice(ops.BITWISE), x, y)
            return
        name = self.rng.choice(ops.BINARY)
        if integral and name in ("fmod", "remainder", "floor_divide"):
            raise Nothing  # a zero among the divisors ends the process on some machines
        if name in ("add", "sub") and self.rng.random() < 0.2:
            self.add(f"{name}_alpha", x, y, self.number_text(self.tensor(x)))
            return
        if name == "div" and not integral and self.rng.random() < 0.4:
            self.add("div_mode", x, y, self.rng.choice(["floor", "trunc"]))
            return
        self.add(name, x, y)

    def number(self) -> None:
        """A tensor and a number."""
        rng = self.rng
        x = self.pick()
        like = self.tensor(x)
        n = self.number_text(like)
        kinds = ["add", "sub", "mul", "rsub", "clamp", "masked_fill", "eq", "lt", "ge", "maximum"]
        kinds += ["threshold"]
        if like.is_floating_point():
            kinds += ["div", "rdiv", "pow", "pow_abs", "rpow", "add", "mul", "fmod", "remainder"]
        kind = rng.choice(kinds)
        if kind == "clamp":
            low, high = rng.choice([("None", "1"), ("-1", "2"), ("0", "None"), ("-0.5", "0.5")])
            self.add("clamp", x, low, high)
        elif kind == "masked_fill":
            mask = self.beside(
                x, lambda t: t.dtype is torch.bool and self.broadcastable(x, True)(t)
            )
            self.add("masked_fill", x, mask, n)
        elif kind == "threshold":
            self.add("threshold", x, n, self.number_text(like))
        elif kind == "pow":
            self.add("pow", x, rng.choice(["2", "3", "0.5", "1", "0", "-1"]))
        elif kind == "rpow":
            self.add("rpow", x, rng.choice(["2", "0.5", "1"]))
        elif kind in ("fmod", "remainder"):
            self.add(kind, x, rng.choice(["2", "3", "0.7", "-1.5"]))
        elif kind == "maximum":
            integral = not like.is_floating_point() and like.dtype is not torch.bool
            if integral:
                self.add(rng.choice(["shift", "rshift"]), x, rng.choice(["0", "1", "2"]))
            elif like.dtype is torch.bool:
                self.add("invert", x)
            else:
                self.add("maximum", x, self.beside(x, self.broadcastable(x)))
        else:
            self.add(kind, x, n)

    def ternary(self) -> None:
        rng = self.rng
        x = self.pick()
        y = self.beside(x, self.broadcastable(x))
        z = self.beside(x, self.broadcastable(x))
        kind = rng.choice(
            ["where", "where", "where_gt", "lerp", "addcmul", "addcdiv", "clamp_tensor"]
        )
        if kind == "where":
            mask = self.beside(x, lambda t: t.dtype is torch.bool and self.broadcastable(x)(t))
            self.add("where", mask, x, y if rng.random() < 0.7 else self.number_text())
        elif kind == "where_gt":
            self.add("where_gt", x, y, z, self.number_text())
        elif kind == "lerp":
            self.add("lerp", x, y, z if rng.random() < 0.3 else self.number_text())
        elif kind == "clamp_tensor":
            self.add("clamp_tensor", x, y, z)
        else:
            self.add(kind, x, y, z, self.number_text(self.tensor(x)))

    def complex_numbers(self) -> None:
        rng = self.rng
        there = self.names(torch.is_complex)
        if there and rng.random() < 0.7:
            kinds = words("real imag conj view_as_real angle sgn abs exp times_complex mul div")
            kind, x = rng.choice(kinds), rng.choice(there)
        else:
            kind = rng.choice(words("complex complex polar times_complex view_as_complex"))
            x = self.pick(lambda t: t.dtype in (torch.float32, torch.float64))
        if kind == "times_complex":
            self.add(kind, x, rng.choice(["1j", "-2j", "0.5j"]))
        elif kind in ("complex", "polar", "mul", "div"):
            like = self.tensor(x)
            fits = self.broadcastable(x)
            self.add(kind, x, self.beside(x, lambda t: t.dtype is like.dtype and fits(t)))
        else:
            self.add(kind, x)

    def cast(self) -> None:
        x = self.pick()
        dtype = self.rng.choice(self.dtypes if self.rng.random() < 0.8 else DTYPES)
        if self.tensor(x).is_floating_point() and dtype not in [*FLOATS, "bool"]:
            self.add("to_int", x, f"torch.{dtype}", "0" if dtype == "uint8" else "-100")
        else:
            self.add("to", x, f"torch.{dtype}")

    def reduce(self) -> None:
        rng = self.rng
        kind = rng.choice(["all", "dim", "dim", "scan", "soft", "norm", "other"])
        x = self.pick(lambda t: t.numel() > 0 or rng.random() < 0.2)
        t = self.tensor(x)
        if kind == "all":
            self.add(rng.choice([n for n in ops.REDUCTIONS if n != "logsumexp"]), x)
            return
        if kind == "norm":
            name = rng.choice(["layer_norm", "rms_norm", "batch_norm", "group_norm"])
            self.add(name, self.pick(lambda t: t.is_floating_point() and t.dim() >= 2))
            return
        d = self.dim(t)
        keep = rng.choice(["True", "False"])
        if kind == "dim":
            name = rng.choice([n for n in ops.REDUCTIONS if n != "count_nonzero"])
            dims: object = d
            if (
                name in ("sum", "mean", "amax", "amin", "var")
                and t.dim() > 1
                and rng.random() < 0.3
            ):
                dims = tuple(rng.sample(range(t.dim()), 2))
            self.add(f"{name}_dim", x, dims, keep)
        elif kind == "scan":
            name = rng.choice(ops.SCANS)
            extra = [rng.randrange(2)] if name in ("cummax", "cummin") else []
            self.add(name, x, d, *extra)
        elif kind == "soft":
            x = self.pick(lambda t: t.is_floating_point() and t.dim() > 0)
            self.add(rng.choice(["softmax", "log_softmax"]), x, self.dim(self.tensor(x)))
        else:
            name = rng.choice(
                words("max_dim min_dim aminmax sum_dtype norm var_mean sort topk median")
            )
            if name == "aminmax":
                self.add(name, x, rng.randrange(2))
            elif name == "sum_dtype":
                self.add(name, x, d, self.dtype(FLOATS))
            elif name == "norm":
                order = rng.choice(["1", "2", "torch.inf", "0"])
                self.add(name, self.pick(torch.is_floating_point), order, "None")
            elif name == "median":
                self.add(name, x)
            elif name == "topk":
                self.add(name, x, d)
            else:
                self.add(name, x, d, rng.randrange(2))

    def matrix(self) -> None:
        rng = self.rng
        kind = rng.choice(
            ["matmul"] * 3 + ["linear", "addmm", "gram", "outer", "conv1d", "attention"]
        )
        kind = rng.choice([kind, kind, "bilinear", "max_pool1d", "avg_pool1d"])
        x = self.pick(lambda t: t.is_floating_point() and t.dim() > 0)
        t = self.tensor(x)
        if kind == "gram":
            self.add("gram", self.pick(lambda t: t.is_floating_point() and t.dim() > 1))
        elif kind == "matmul":
            rows = (t.shape[-1],)
            y = self.beside(
                x,
                lambda y: (
                    y.dtype is t.dtype
                    and y.dim() > 0
                    and (y.shape[-2] if y.dim() > 1 else y.shape[0]) == rows[0]
                ),
            )
            self.add("matmul", x, y)
        elif kind == "linear":
            y = self.beside(
                x, lambda y: y.dtype is t.dtype and y.dim() == 2 and y.shape[1] == t.shape[-1]
            )
            out = self.tensor(y).shape[0]
            biases = self.names(lambda b: b.dtype is t.dtype and b.shape == (out,))
            biases = [b for b in biases if self.where[b] == self.where[x]]
            if biases and rng.random() < 0.5:
                self.add("linear_bias", x, y, rng.choice(biases))
            else:
                self.add("linear", x, y)
        elif kind == "addmm":
            x = self.pick(lambda t: t.is_floating_point() and t.dim() == 2)
            t = self.tensor(x)
            y = self.beside(
                x, lambda y: y.dtype is t.dtype and y.dim() == 2 and y.shape[0] == t.shape[1]
            )
            shape = (t.shape[0], self.tensor(y).shape[1])
            z = self.beside(
                x,
                lambda z: (
                    z.dtype is t.dtype
                    and z.dim() <= 2
                    and all(a in (1, b) for a, b in zip(z.shape[::-1], shape[::-1], strict=False))
                ),
            )
            self.add("addmm", z, x, y, rng.choice(["1", "0.5", "0"]), rng.choice(["1", "2"]))
        elif kind in ("outer", "bilinear"):
            x = self.pick(lambda t: t.dim() == 1)
            self.add(kind, x, self.beside(x, lambda y: y.dim() == 1))
        elif kind == "conv1d":
            x = self.pick(lambda t: t.is_floating_point() and t.dim() == 3)
            t = self.tensor(x)
            y = self.beside(
                x, lambda y: y.dtype is t.dtype and y.dim() == 3 and y.shape[1] == t.shape[1]
            )
            self.add("conv1d", x, y)
        else:
            self.add(kind, self.pick(lambda t: t.is_floating_point() and t.dim() == 3))

    def indexing(self) -> None:
        rng = self.rng
        kind = rng.choice(
            words(
                """
    gather index_select index index_negative index_two index_last index_mask embedding one_hot take
    take_along tril triu flip roll cat stack pad repeat repeat_interleave scatter scatter_add
    masked_select nonzero diag_embed cat index gather interpolate bucketize pad_reflect unique
    """
            )
        )
        x = self.pick(lambda t: t.numel() > 0)
        t = self.tensor(x)
        if kind in ("tril", "triu"):
            self.add(kind, x, rng.choice([-1, 0, 1]))
            return
        if kind in ("diag_embed", "nonzero", "pad_reflect", "interpolate", "unique"):
            self.add(kind, x)
            return
        if kind == "one_hot":
            place = rng.choice(self.devices)
            self.add(kind, self.seed(), rng.choice([3, 5]), "(4,)", place, place=place)
            return
        d = self.dim(t)
        some = rng.choice([(2,), (3,), (5,), (2, 2), ()])
        if kind == "gather":
            shape = list(t.shape)
            shape[d] = rng.choice([1, 2, 5])
            self.add("gather", x, d, self.seed(), tuple(shape))
        elif kind == "index_select":
            self.add(kind, x, d, self.seed(), rng.choice([(1,), (3,), (6,)]))
        elif kind in ("index", "index_negative", "index_last", "embedding", "take"):
            self.add(kind, x, self.seed(), some)
        elif kind == "index_two":
            x = self.pick(lambda t: t.numel() > 0 and t.dim() > 1)
            self.add(kind, x, self.seed(), self.seed(), rng.choice([(3,), (2, 1), ()]))
        elif kind in ("index_mask", "masked_select"):
            wanted = t.shape if kind == "index_mask" else None
            mask = self.beside(
                x, lambda m: m.dtype is torch.bool and m.dim() > 0 and wanted in (None, m.shape)
            )
            self.add(kind, x, mask)
        elif kind == "bucketize":
            y = self.beside(x, lambda y: y.numel() > 0 and y.dtype is t.dtype)
            if self.where[y] == self.where[x]:
                self.add(kind, x, y)
        elif kind == "take_along":
            self.add(kind, x, d)
        elif kind == "flip":
            self.add(kind, x, (d,))
        elif kind == "roll":
            self.add(kind, x, rng.choice([1, -2]), d)
        elif kind == "cat":
            fits = [
                n
                for n in self.names(lambda y: y.dim() == t.dim())
                if self.where[n] == self.where[x]
                and all(
                    a == b
                    for k, (a, b) in enumerate(zip(self.tensor(n).shape, t.shape, strict=True))
                    if k != d % t.dim()
                )
            ]
            self.add(kind, x, self.choice(fits), d)
        elif kind == "stack":
            self.add(kind, x, d)
        elif kind == "pad":
            amounts = rng.choice([(1, 2), (0, 1), (-1, 1), (1, 0, 2, 1)])
            self.add(kind, x, amounts, rng.choice(["0", "1.5"]))
        elif kind == "repeat":
            self.add(kind, x, tuple(rng.choice([1, 2]) for _ in range(t.dim())))
        elif kind == "repeat_interleave":
            self.add(kind, x, 2, d)
        elif kind == "scatter":
            shape = list(t.shape)
            shape[d] = rng.choice([1, 2])
            self.add(kind, x, d, self.seed(), tuple(shape), self.number_text(t))
        else:
            self.add("scatter_add", x, d, self.seed())

    def view(self) -> None:
        rng = self.rng
        kind = rng.choice(
            words(
                """
            t transpose permute select narrow slice_first slice_last expand view_flat view
            reshape unsqueeze squeeze unfold diagonal as_strided view_dtype split chunk detach
            alias slice_first slice_last transpose select
            """
            )
        )
        x = self.pick()
        t = self.tensor(x)
        if kind in ("view_flat", "squeeze", "detach", "alias"):
            self.add(kind, x)
            return
        if kind == "as_strided":
            self.as_strided(x)
            return
        if kind == "view_dtype":
            same = {1: ["uint8", "bool"], 2: ["float16", "bfloat16"], 4: ["float32", "int32"]}
            options = same.get(t.element_size(), ["float64", "int64"])
            if options == ["uint8", "bool"] and t.dtype is torch.uint8:
                raise Nothing  # a bool that is neither 0 nor 1
            if rng.random() < 0.3 and t.dtype is not torch.bool:
                options = ["uint8", "int32"]
            elif not t.is_floating_point():
                # Bits of an integer are mostly numbers too small to compute with.
                options = [o for o in options if o not in FLOATS]
            self.add(kind, x, f"torch.{self.choice(options)}")
            return
        if kind in ("t", "diagonal"):
            x = self.pick(lambda t: t.dim() > 1)
            self.add(kind, x, *([rng.choice([-1, 0, 1])] if kind == "diagonal" else []))
            return
        if kind == "expand":
            lead = rng.choice([(), (2,), (3,)])
            shape = [n if n != 1 else rng.choice([1, 3]) for n in t.shape]
            self.add(kind, x, (*lead, *shape))
            return
        if kind in ("view", "reshape"):
            n = t.numel()
            divisors = [k for k in range(1, n + 1) if n % k == 0] or [1]
            a = rng.choice(divisors)
            self.add(kind, x, rng.choice([(a, -1), (-1, a), (n,)]))
            return
        d = self.dim(t)
        size = t.shape[d]
        if kind == "transpose":
            self.add(kind, x, d, self.dim(t))
        elif kind == "permute":
            self.add(kind, x, tuple(rng.sample(range(t.dim()), t.dim())))
        elif kind == "select":
            self.add(kind, x, d, rng.randrange(-size, size) if size else 0)
        elif kind == "narrow":
            start = rng.randint(0, size)
            self.add(kind, x, d, start, rng.randint(0, size - start))
        elif kind in ("slice_first", "slice_last"):
            self.add(kind, x, *self.bounds(t.shape[0 if kind == "slice_first" else -1]))
        elif kind == "unsqueeze":
            self.add(kind, x, d)
        elif kind == "unfold":
            length = rng.randint(1, max(1, min(size, 4)))
            self.add(kind, x, d, length, rng.choice([1, 2]))
        elif kind == "split":
            self.add(kind, x, max(1, (size + 1) // 2), d, rng.choice([0, -1]))
        else:
            self.add(kind, x, d)

    def as_strided(self, x: str) -> None:
        rng, t = self.rng, self.tensor(x)
        room = self.room(t)
        sizes = [rng.choice([1, 2, 3, 4]) for _ in range(rng.randint(0, 3))]
        strides = [rng.choice([0, 1, 1, 2, 3, 4, 8]) for _ in sizes]
        span = 1 + sum((n - 1) * k for n, k in zip(sizes, strides, strict=True))
        if span > room:
            raise Nothing
        self.add("as_strided", x, tuple(sizes), tuple(strides), rng.randint(0, room - span))
