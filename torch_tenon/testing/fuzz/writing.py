"""Statements that write: in place, through views, into what is given, over lists of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from torch_tenon.testing.fuzz.choose import MOST_ELEMENTS, Chooser, Nothing
from torch_tenon.testing.fuzz.memory import addresses, overlaps
from torch_tenon.testing.fuzz.operations import OPERATIONS, words


class Writing(Chooser):
    """Kinds of statements that change a variable."""

    def target(self, fits: Callable[[torch.Tensor], bool] = lambda _: True) -> str:
        """A variable whose elements have memory of their own each."""
        return self.pick(lambda t: fits(t) and t.numel() > 0 and addresses(t) is not None)

    def source(self, target: str, exact_shape: bool = False) -> str:
        """An operand for a write into `target`: memory that the write does not touch, or the very
        same elements; what PyTorch leaves undefined is left out."""
        t = self.tensor(target)
        into = self.broadcastable(target, into=True)

        def fits(y: torch.Tensor) -> bool:
            if not into(y) or (exact_shape and y.shape != t.shape):
                return False
            return not overlaps(t, y) or (
                t.dtype is y.dtype
                and t.shape == y.shape
                and t.stride() == y.stride()
                and t.storage_offset() == y.storage_offset()
            )

        return self.beside(target, fits)

    def write(self) -> None:
        rng = self.rng
        kind = rng.choice(
            ["binary"] * 3 + ["number"] * 2 + ["unary", "through"] * 2 + ["index", "other"]
        )
        x = self.target()
        t = self.tensor(x)
        integral = not t.is_floating_point()
        if kind == "binary":
            name = rng.choice(
                words("add_ sub_ mul_ div_ copy_ add_ copy_ eq_ lt_ logical_and_ atan2_ augmented")
            )
            y = self.source(x)
            if name == "copy_" and integral and self.tensor(y).is_floating_point():
                raise Nothing  # a float beyond the integers is undefined
            self.add(name, x, y, result=False)
        elif kind == "number":
            name = rng.choice(
                words("add_ sub_ mul_ fill_ gt_ pow_ clamp_min_ clamp_max_ add_ mul_ augmented")
                + ([] if integral else ["div_", "fmod_", "remainder_", "floor_divide_"])
            )
            n = rng.choice(["2", "3"]) if name in ("pow_", "fmod_", "remainder_") else None
            self.add(name, x, n or self.number_text(t), result=False)
        elif kind == "unary":
            names = "tanh sigmoid sin abs neg relu zero floor round logical_not exp nan_to_num"
            self.add(f"{rng.choice(words(names))}_", x, result=False)
        elif kind == "through":
            self.write_through(x)
        elif kind == "index":
            self.write_at(x)
        else:
            name = rng.choice(
                words(
                    """
    add_alpha_ addcmul_ lerp_ masked_fill_ cumsum_ tril_ transpose_ unsqueeze_ set_ resize_
    resize_fill set_data swap
    """
                )
            )
            self.write_other(name, x)

    def write_through(self, x: str) -> None:
        rng, t = self.rng, self.tensor(x)
        kind = rng.choice(
            ["set_first", "set_last", "add_last", "mul_t", "copy_diagonal", "set_mask"]
        )
        n = self.number_text(t)
        if kind == "set_mask":
            mask = self.beside(x, lambda m: m.dtype is torch.bool and m.shape == t.shape)
            if overlaps(t, self.tensor(mask)):
                raise Nothing
            self.add(kind, x, mask, n, result=False)
        elif kind == "mul_t":
            self.add(kind, x, n, result=False)
        elif kind == "copy_diagonal":
            self.add(kind, x, self.source(x), result=False)
        else:
            bounds = self.bounds(t.shape[0 if kind == "set_first" else -1] if t.dim() else 0)
            value = n
            if rng.random() < 0.5:
                value = self.beside(x, lambda y: y.dim() <= 1 and not overlaps(t, y))
                if not t.is_floating_point() and self.tensor(value).is_floating_point():
                    raise Nothing
            self.add(kind, x, *bounds, value, result=False)

    def write_at(self, x: str) -> None:
        """Writes at indices; all different, where the order would decide."""
        rng, t = self.rng, self.tensor(x)
        d = self.dim(t)
        n = self.number_text(t)
        kind = rng.choice(["index_put_", "index_put_add_", "index_add_", "index_fill_", "scatter_"])
        if kind == "index_put_":
            self.add(kind, x, self.seed(), f"({min(2, t.shape[0])},)", n, result=False)
        elif kind == "index_put_add_":
            y = self.beside(x, lambda y: y.dtype is t.dtype and y.dim() == 0 and not overlaps(t, y))
            self.add(kind, x, self.seed(), rng.choice([(2,), (7,)]), y, result=False)
        elif kind == "index_fill_" or kind == "scatter_":
            self.add(kind, x, d, self.seed(), n, result=False)
        else:
            kind = rng.choice(["index_add_", "index_copy_"])
            y = self.beside(
                x, lambda y: y.dtype is t.dtype and y.shape == t.shape and not overlaps(t, y)
            )
            extra = [rng.choice(["1", "2"])] if kind == "index_add_" else []
            self.add(kind, x, d, self.seed(), y, *extra, result=False)

    def write_other(self, name: str, x: str) -> None:
        rng, t = self.rng, self.tensor(x)
        if name == "add_alpha_":
            self.add(name, x, self.source(x), self.number_text(t), result=False)
        elif name == "addcmul_":
            self.add(name, x, self.source(x), self.source(x), self.number_text(t), result=False)
        elif name == "lerp_":
            self.add(name, x, self.source(x), self.number_text(), result=False)
        elif name == "masked_fill_":
            mask = self.beside(
                x,
                lambda m: (
                    m.dtype is torch.bool
                    and self.broadcastable(x, into=True)(m)
                    and not overlaps(t, m)
                ),
            )
            self.add(name, x, mask, self.number_text(t), result=False)
        elif name in ("cumsum_", "unsqueeze_"):
            self.add(name, x, self.dim(t), result=False)
        elif name == "transpose_":
            self.add(name, x, self.dim(t), self.dim(t), result=False)
        elif name == "tril_":
            self.add(name, x, result=False)
        elif name in ("resize_", "resize_fill"):
            if not t.untyped_storage().resizable():
                raise Nothing  # it raises, and leaves the tensor larger than its memory
            shape = self.shape()
            if name == "resize_":
                room = self.room(t) - t.storage_offset()
                if math.prod(shape) > room:
                    raise Nothing  # what is new would hold anything
                self.add(name, x, shape, result=False)
            else:
                self.add(name, x, shape, rng.choice(["1", "2.5", "0"]), result=False)
        elif name == "swap":
            y = self.beside(x)
            if self.where[y] == self.where[x]:
                self.add(name, x, y, result=False)
        else:
            y = self.beside(x, lambda y: y.dtype is t.dtype)
            if self.where[y] == self.where[x]:
                self.add(name, x, y, result=False)

    def out(self) -> None:
        rng = self.rng
        x = self.pick(lambda t: not t.requires_grad)
        y = self.beside(x, self.broadcastable(x))
        kind = rng.choice(
            words(
                """
                add mul sub maximum div lt matmul tanh sigmoid exp neg isnan abs sum amax cumsum
                softmax mean cat where addmm
                """
            )
        )
        name = f"{kind}_out"
        t = self.tensor(x)
        if kind in ("tanh", "sigmoid", "exp", "neg", "isnan", "abs"):
            operands = [x]
        elif kind in ("sum", "amax", "cumsum", "softmax", "mean") or kind == "cat":
            operands = [x, str(self.dim(t))]
        elif kind == "where":
            operands = [self.beside(x, lambda m: m.dtype is torch.bool), x, y]
        elif kind == "addmm":
            operands = [x, self.beside(x, lambda m: m.dim() == 2), self.beside(x)]
        else:
            operands = [x, y]
        # The shape and dtype that it has: what is given is one like it, or of another size.
        try:
            probe = OPERATIONS[name].source.replace(", out={0}", "").format("", *operands)
            result = eval(probe, dict(self.scope))
        except Exception:
            raise Nothing from None
        if not isinstance(result, torch.Tensor) or result.numel() > MOST_ELEMENTS:
            raise Nothing
        involved = [self.tensor(n) for n in operands if n in self.where]
        pointwise = kind not in words("sum amax cumsum softmax mean cat matmul addmm")

        def fits(z: torch.Tensor) -> bool:
            if z.requires_grad or addresses(z) is None:
                return False
            if any(overlaps(z, v) for v in involved):
                same = [v for v in involved if overlaps(z, v)]
                return pointwise and all(
                    v.dtype is z.dtype
                    and v.shape == z.shape == result.shape
                    and v.stride() == z.stride()
                    and v.storage_offset() == z.storage_offset()
                    for v in same
                )
            if z.shape != result.shape and rng.random() < 0.9:
                return False
            if z.dtype is not result.dtype and result.is_floating_point():
                return z.is_floating_point()
            return True

        z = self.beside(x, fits)
        if self.where[z] == "H" and self.where[x] != "H":
            raise Nothing
        self.add(name, z, *operands, result=False)

    def foreach(self) -> None:
        rng = self.rng
        x = self.target(torch.is_floating_point)
        t = self.tensor(x)
        kind = rng.choice(
            words(
                """
            foreach_add foreach_mul foreach_sqrt foreach_norm foreach_add_ foreach_mul_
            foreach_addcdiv_ foreach_lerp_ foreach_zero_
            """
            )
        )
        y = self.beside(
            x, lambda y: y.dtype is t.dtype and y.shape == t.shape and not overlaps(t, y)
        )
        if self.where[y] != self.where[x]:
            raise Nothing
        n = self.number_text()
        k = rng.randrange(2)
        if kind == "foreach_add" or kind in ("foreach_sqrt", "foreach_norm"):
            self.add(kind, x, y, k)
        elif kind == "foreach_mul":
            self.add(kind, x, y, n, k)
        elif kind in ("foreach_add_", "foreach_lerp_"):
            self.add(kind, x, y, n, result=False)
        elif kind == "foreach_addcdiv_":
            self.add(kind, x, y, y, n, result=False)
        elif kind == "foreach_mul_":
            self.add(kind, x, n, result=False)
        else:
            self.add(kind, x, result=False)
