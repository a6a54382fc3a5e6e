"""Ops that are composed of others: their compositions run on values instead of tensors."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from torch_tenon.ir.arguments import key_of
from torch_tenon.ir.index import Expr, Index, nonnegative
from torch_tenon.ir.program import Program
from torch_tenon.ir.values import Lazy, Stored, Value, dense_layout, weigh
from torch_tenon.ops import variants
from torch_tenon.ops.compositions import composition_of
from torch_tenon.ops.lowerings.table import CannotLower, TensorMeta, broadcast_to, cast, find

if TYPE_CHECKING:
    from torch_tenon.ir.symbolic import SymbolicSizes


class Lowering(Protocol):
    """What lowers the ops that a composition calls."""

    program: Program
    stand_ins: StandIns

    def lower(
        self,
        op: Any,
        positional: list[Any],
        keywords: dict[str, Any],
        results: list[TensorMeta | None],
    ) -> Any:
        """The op's result as a value, a list of them where it has several."""


class StandIns:
    """Tensors without memory for the values of a program, and numbers for its sizes."""

    @functools.cached_property
    def symbolic(self) -> SymbolicSizes:
        """Those of any value."""
        from torch_tenon.ir.symbolic import SymbolicSizes

        return SymbolicSizes()

    def called(self, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """What an op gives for such tensors and numbers. Raises CannotLower where PyTorch has
        nothing for a size of any value."""
        if "symbolic" not in vars(self):
            return op(*args, **kwargs)
        try:
            with enable_python_dispatcher(), self.symbolic.mode:
                return op(*args, **kwargs)
        except RuntimeError as error:
            raise CannotLower(f"its sizes may have any value, as {op} does not allow") from error

    @property
    def are_of_some_sizes(self) -> bool:
        """Whether PyTorch's code took a decision that holds for some sizes alone."""
        return "symbolic" in vars(self) and bool(self.symbolic.environment.guards)

    def given(self, x: Any) -> Any:
        """What PyTorch's code sees in place of a value or of a size; anything else as it is.
        Raises CannotLower for a size that may be 0 or 1."""
        if isinstance(x, Expr):
            return self._decided(lambda: self.symbolic.integer(x))
        if not isinstance(x, Value):
            return x
        strides = _strides(x)
        if any(isinstance(n, Expr) for n in (*x.sizes, *strides)) or "symbolic" in vars(self):
            return self._decided(lambda: self.symbolic.tensor(x.sizes, strides, x.dtype))
        return torch.empty_strided(x.sizes, strides, dtype=x.dtype, device="meta")  # type: ignore[arg-type]

    def index(self, x: Any) -> Any:
        """A number that PyTorch's code computed: a value where it is computed of sizes and is not
        whole. Raises CannotLower where it is of some sizes alone."""
        if "symbolic" not in vars(self):
            return x
        return self._decided(lambda: self.symbolic.index(x))

    def _decided(self, find: Callable[[], Any]) -> Any:
        from torch_tenon.ir.symbolic import UndecidedSize

        try:
            return find()
        except UndecidedSize as reason:
            raise CannotLower(f"its sizes may have any value: {reason}") from None

    def meta(self, t: torch.Tensor) -> TensorMeta:
        """What is known of a tensor without memory."""
        sizes, strides = tuple(map(self.index, t.shape)), tuple(map(self.index, t.stride()))
        return TensorMeta(t.dtype, sizes, strides)


def _strides(x: Value) -> Sequence[Index]:
    """How a value lies, or would lie in eager code: which kernel runs there depends on it."""
    if isinstance(x, Stored):
        return x.layout.strides
    lazy = (x.eager_strides or x.strides) if isinstance(x, Lazy) else None
    return lazy or dense_layout(x.sizes).strides


class Composition(TorchDispatchMode):
    """Runs a function of tensors on values: every op that it calls is lowered as it comes.

    The tensors that the function sees have sizes and no memory.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # PyTorch would hide what is below from Dynamo, and load Dynamo for that, with the first op.
        return False

    def __init__(self, builder: Lowering) -> None:
        super().__init__()
        self.builder = builder
        self.stand_ins = builder.stand_ins
        self.values: dict[int, tuple[torch.Tensor, Value]] = {}  # by the tensor's identity
        self.uses: Counter[int] = Counter()  # how many ops read that tensor

    def run(self, function: Any, positional: list[Any], keywords: dict[str, Any]) -> Any:
        """The function's results, as values."""
        turned: dict[int, Stored] = {}

        def tensor(x: Any) -> Any:
            # No tensor of PyTorch's has negative strides, as a value that was flipped may have.
            if isinstance(x, Stored) and not all(map(nonnegative, x.layout.strides)):
                if id(x) not in turned:
                    turned[id(x)] = self.builder.program.copy(x)
                x = turned[id(x)]
            return self._tensor(x)

        args, named = tree_map(tensor, (positional, keywords))
        with self:
            result = function(*args, **named)
        if result is NotImplemented:
            raise CannotLower("such arguments are not decomposed")
        self._share([t for t in tree_leaves(result) if isinstance(t, torch.Tensor)])
        return tree_map(self._value, result)

    def _share(self, results: list[torch.Tensor]) -> None:
        """Gives memory to results that others are computed of, so that they read it."""
        own = {id(t) for t in results}
        made = [(t, value) for t, value in self.values.values() if id(t) in own]  # in this order
        for t, value in made:
            if self.uses[id(t)] and weigh(value, self.uses[id(t)] + 1):
                strides = self.stand_ins.meta(t).strides
                memory = self.builder.program.realise(value, strides)
                for _, later in made:  # does not know that it reads this memory
                    if isinstance(later, Lazy):
                        later.reads |= memory.reads

    def _tensor(self, x: Any) -> Any:
        stand_in = self.stand_ins.given(x)
        return self._enter(stand_in, x) if isinstance(x, Value) else stand_in

    def _enter(self, t: torch.Tensor, value: Value) -> torch.Tensor:
        self.values[id(t)] = (t, value)  # the tensor is kept, so that its identity is its own
        return t

    def _value(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return self.values[id(x)][1]
        return self.stand_ins.index(x)

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Lowers one op."""
        kwargs = kwargs or {}
        if op.namespace == "prim":  # a question about a tensor
            return op(*args, **kwargs)
        self.uses.update(id(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor))
        standalone = self.builder.program.standalone
        composed = composition_of(op, standalone)
        if composed is not None and find(op, standalone) is None:
            with self:
                result = composed(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if torch.Tag.data_dependent_output in op.tags:
            raise CannotLower(f"{op} needs data")
        functional = variants.functional_of(op)
        if functional is None:
            raise CannotLower(f"{op} writes its arguments")
        result = self.stand_ins.called(op, args, kwargs)
        if any(
            isinstance(t, torch.Tensor) and t.device.type != "meta"
            for t in tree_leaves((args, kwargs, result))
        ):
            raise CannotLower(f"{op} makes a tensor outside of the device")
        schema = op._schema.arguments
        given = dict(zip((a.name for a in schema), args, strict=False)) | kwargs
        written = [a for a in schema if variants.is_written(a)]
        given = {
            k: self._value_of_any(v)
            for k, v in given.items()
            if not any(a.name == k and variants.is_out(a) for a in written)
        }
        outputs = [result] if isinstance(result, torch.Tensor) else list(result or ())
        meta = self.stand_ins.meta
        metas = [meta(t) for t in tree_leaves(outputs) if isinstance(t, torch.Tensor)]
        positional, keywords = as_called(functional, given)
        values = self.builder.lower(functional, positional, keywords, list(metas))
        if result is None:
            return None
        if written:
            if len(written) != 1 or not isinstance(result, torch.Tensor):
                raise CannotLower(f"{op} writes several arguments")
            if self._is_shown_by_others(result):
                raise CannotLower(f"{op} writes memory that another tensor shows")
            value = cast(values, result.dtype)
            self._enter(result, broadcast_to(value, meta(result).sizes))
            return result
        if isinstance(result, torch.Tensor):
            return self._enter(result, values)
        for t, v in zip(tree_leaves(result), _flat(values), strict=True):
            self._enter(t, v)
        return result

    def _value_of_any(self, x: Any) -> Any:
        return tree_map(self._value, x)

    def _is_shown_by_others(self, t: torch.Tensor) -> bool:
        """Whether another tensor is a view of the same memory: its value would stay the old one."""
        memory = t.untyped_storage()._cdata
        tensors = (other for other, _ in self.values.values() if other is not t)
        return any(other.untyped_storage()._cdata == memory for other in tensors)


def _flat(x: Any) -> list[Any]:
    return [v for y in x for v in _flat(y)] if isinstance(x, list | tuple) else [x]


def as_called(op: Any, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments as a graph has them: defaults at the end are left out."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    arguments = op._schema.arguments
    for a in arguments:
        value = given.get(a.name, a.default_value)
        if not a.kwarg_only:
            positional.append(value)
        elif not _is_default(a, value):
            keywords[a.name] = value
    for a in reversed([a for a in arguments if not a.kwarg_only]):
        if not _is_default(a, positional[-1]):
            break
        positional.pop()
    return positional, keywords


def _is_default(argument: torch.Argument, value: Any) -> bool:
    default = argument.default_value
    if not argument.has_default_value() or isinstance(value, Value):
        return False
    return bool(key_of(value) == key_of(default))
