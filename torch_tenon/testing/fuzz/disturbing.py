"""Statements that disturb those around them: errors that come late, threads, streams, memory under
two names, settings that change, interrupts, forks and limits. What they are made of is plain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

import torch

from torch_tenon.testing.fuzz.choose import Chooser, Nothing
from torch_tenon.testing.fuzz.kinds import SHARES, Kind
from torch_tenon.testing.fuzz.memory import Extent, addresses, extent, meets
from torch_tenon.testing.fuzz.operations import words
from torch_tenon.testing.fuzz.program import Statement

Makers = list[tuple[Callable[[], None], float]]

# Autocast treats them alike on every device; the other lists are each device's own.
_OF_AUTOCAST = set(
    words(
        """
    matmul linear linear_bias addmm gram conv1d add sub mul neg relu sigmoid tanh abs where clone
    made full zeros ones t transpose select narrow unsqueeze expand view_flat add_ sub_ mul_ copy_
    fill_ read item_float commit
    """
    )
)
_AT_READING = words("mode function_mode inference float64 deterministic one_thread no_autocast")
_SETTINGS = words(
    """
    inference inference grad autocast autocast autocast no_autocast float64 float64 bfloat16
    deterministic one_thread two_threads mode function_mode
    """
)
_STREAMS = words("stream stream other_stream in_stream far_stream")
# Off the main thread: no gradients, and nothing that gives a shared variable another tensor.
_NOT_ON_THREADS = set(
    words(
        """
    del swap set_ set_data resize_ resize_fill transpose_ unsqueeze_ backward backward_mean grad
    grad_of clear_grad sgd adamw leaf
    """
    )
)


class Disturbing(Chooser):
    """The kinds of statements beyond plain ones."""

    plain: Makers
    _shared: list[Extent] | None = None  # memory that threads may not write
    _own: dict[str, set[str]]  # variables that a thread made, by thread

    def _disturbers(self, kinds: Collection[str]) -> Makers:
        makers = {
            Kind.ERRORS: self.error,
            Kind.THREADS: self.threads,
            Kind.STREAMS: self.streams,
            Kind.DLPACK: self.dlpack,
            Kind.SETTINGS: self.settings,
            Kind.INTERRUPTS: self.interrupt,
            Kind.FORKS: self.fork,
            Kind.LIMITS: self.limits,
        }
        wanted = [k for k in makers if k in kinds]
        # With one kind alone each program has it.
        alone = len(wanted) == 1
        wanted = [k for k in wanted if alone or self.rng.random() < SHARES[k].programs]
        return [(makers[k], SHARES[k].weight) for k in wanted]

    def _any_of(self, makers: Makers) -> None:
        kinds, weights = zip(*makers, strict=True)
        self._try(self.rng.choices(kinds, weights)[0])

    def _try(self, kind: Callable[[], None]) -> None:
        try:
            kind()
        except Nothing:
            return

    def _stretch(self, count: int, around: tuple[str, ...] = (), thread: str = "") -> None:
        """Some plain statements with something around them."""
        self.around, self.thread = around, thread
        try:
            for _ in range(count):
                self._any_of(self.plain)
        finally:
            self.around, self.thread = (), ""

    def allowed(self, statement: Statement) -> bool:
        """Whether a statement may have what is around it."""
        if "autocast" in statement.around:
            # The device's autocast leaves tensors of the host alone, and the CPU's does not.
            names = [n for x in statement.operands for n in re.findall(r"a\d+", x)]
            of_host = any(self.where.get(n) == "H" for n in names)
            if of_host or statement.operation not in _OF_AUTOCAST:
                return False
        return not statement.thread or self._keeps_to_itself(statement)

    # Errors that come late

    def error(self) -> None:
        """A statement that fails by what its operands hold."""
        rng = self.rng
        kind = rng.choice(
            words(
                """
    gather_beyond select_beyond index_beyond index_last_beyond embedding_beyond take_beyond
    scatter_beyond cross_entropy_beyond by_zero by_zero of_zeros of_zeros in_place in_place in_place
    """
            )
        )
        some = rng.choice([(2,), (3,), (5,), (2, 2), ()])
        if kind == "by_zero":
            x = self.pick(_integral)
            self._late(rng.choice(words("floor_divide_by_zero remainder_by_zero fmod_by_zero")), x)
            return
        if kind == "of_zeros":
            name = rng.choice(words("cholesky_of_zeros inv_of_zeros multinomial_of_zeros"))
            dims = (1,) if "multinomial" in name else (2, 3)
            doubles = (torch.float32, torch.float64)
            x = self.pick(lambda t: t.dtype in doubles and t.dim() in dims and t.numel() > 0)
            self._late(name, x)
            return
        if kind == "in_place":
            self._error_in_place()
            return
        if kind == "cross_entropy_beyond":
            x = self.pick(lambda t: t.dtype is torch.float32 and t.dim() == 2 and t.numel() > 0)
            self._late(kind, x, self.seed(), f"({self.tensor(x).shape[0]},)")
            return
        x = self.pick(lambda t: t.numel() > 0)
        t = self.tensor(x)
        d = self.dim(t)
        if kind in ("gather_beyond", "scatter_beyond"):
            shape = list(t.shape)
            shape[d] = rng.choice([1, 2])
            extra = [self.number_text(t)] if kind == "scatter_beyond" else []
            self._late(kind, x, d, self.seed(), tuple(shape), *extra)
        elif kind == "select_beyond":
            self._late(kind, x, d, self.seed(), rng.choice([(1,), (3,), (6,)]))
        else:
            self._late(kind, x, self.seed(), some)

    def _error_in_place(self) -> None:
        rng = self.rng
        kind = rng.choice(
            words(
                """
    put_beyond_ index_fill_beyond_ scatter_beyond_ floor_divide_by_zero_ remainder_by_zero_
    gather_beyond_out
    """
            )
        )

        def fits(t: torch.Tensor) -> bool:
            if t.requires_grad or addresses(t) is None or t.numel() == 0 or t.dim() == 0:
                return False
            return _integral(t) or "by_zero" not in kind

        x = self.pick(fits)
        t = self.tensor(x)
        if "by_zero" in kind:
            self._late(kind, x, result=False)
        elif kind == "put_beyond_":
            self._late(kind, x, self.seed(), "(2,)", self.number_text(t), result=False)
        elif kind == "gather_beyond_out":
            y = self.beside(
                x,
                lambda y: (
                    y.dtype is t.dtype
                    and y.shape == t.shape
                    and y.untyped_storage().data_ptr() != t.untyped_storage().data_ptr()
                ),
            )
            self._late(kind, x, y, self.dim(t), self.seed(), result=False)
        else:
            self._late(kind, x, self.dim(t), self.seed(), self.number_text(t), result=False)

    def _late(self, operation: str, *operands: object, result: bool = True) -> None:
        """A statement that fails late, mostly after one like it that does not."""
        harmless = f"{operation}_not"
        for _ in range(self.rng.choice([0, 1, 1, 2])):
            self.add(harmless, *operands, result=result)
        self.add(operation, *operands, result=result)

    # Threads

    def threads(self) -> None:
        """A stretch on another thread; or two at the same time, each of which reads what there is
        and writes what it made."""
        rng = self.rng
        block = len(self.statements)
        if rng.random() < 0.5:
            self._stretch(rng.randint(2, 6), thread=f"{block}.1")
            return
        self._shared = [extent(self.tensor(n)) for n in self.names()]
        self._own = {f"{block}.1": set(), f"{block}.2": set()}
        first = len(self.statements)
        try:
            for thread in rng.choices(list(self._own), k=rng.randint(4, 12)):
                self._stretch(1, thread=thread)
                for s in self.statements[first:]:
                    if s.result is not None:
                        self._own[s.thread].add(s.result)
        finally:
            self._shared = None

    def _keeps_to_itself(self, statement: Statement) -> bool:
        if statement.operation in _NOT_ON_THREADS:
            return False
        if self._shared is None:
            return True
        others = [own for thread, own in self._own.items() if thread != statement.thread]
        named = statement.variables() | {statement.result or ""}
        if any(named & own for own in others) or statement.result in self.where:
            return False
        writes = statement.definition.writes
        if writes is None:
            return True
        here = extent(self.tensor(statement.operands[writes]))
        return not any(meets(here, shared) for shared in self._shared)

    # Streams

    def streams(self) -> None:
        """A stretch on a stream, or something between streams and events."""
        rng = self.rng
        kind = rng.choice(
            words(
                """
    stretch stretch stretch record_event wait_event synchronize_event query_event stream_waits
    synchronize_stream synchronize
    """
            )
        )
        numbers = rng.sample([1, 2], 2)
        if kind == "stretch":
            self._stretch(rng.randint(1, 5), (rng.choice(_STREAMS),))
        elif kind in ("synchronize_event", "query_event", "synchronize_stream"):
            self.add(kind, numbers[0], result=False)
        elif kind == "synchronize":
            self.add(kind, rng.choice(["D0", "D1"]), result=False)
        else:
            self.add(kind, *numbers, result=False)

    # Memory under two names

    def dlpack(self) -> None:
        """The same memory again, as another library would have it."""
        rng = self.rng
        kind = rng.choice(words("dlpack dlpack_slice dlpack_slice dlpack_of_view"))

        def fits(t: torch.Tensor) -> bool:
            return not t.requires_grad and t.dim() >= {"dlpack": 0, "dlpack_slice": 1}.get(kind, 2)

        x = self.pick(fits)
        bounds = self.bounds(self.tensor(x).shape[0]) if kind == "dlpack_slice" else ()
        here = extent(self.tensor(x))
        self.add(kind, x, *bounds)
        # What is written under one name is seen under the other.
        for _ in range(rng.randint(0, 4)):
            sharing = self.names(lambda t: meets(extent(t), here))
            y = self.choice([n for n in sharing if addresses(self.tensor(n)) is not None])
            n = self.number_text(self.tensor(y))
            self.add(rng.choice(words("add_ mul_ fill_ sub_")), y, n, result=False)
            if rng.random() < 0.6:
                y = self.choice(sharing)
                name = rng.choice(words("read read clone neg sum item"))
                self.add(name, y, result=name != "read")

    # Settings

    def settings(self) -> None:
        """A stretch under a setting, or something read under one."""
        rng = self.rng
        if rng.random() < 0.3:
            self.around = (rng.choice(_AT_READING),)
            try:
                name = rng.choice(words("read read item commit"))
                if name == "commit":
                    self.add(name, result=False)
                elif name == "read":
                    self.add(name, self.choice(self.names()), result=False)
                else:
                    self.add(name, self.pick(lambda t: t.numel() > 0))
            finally:
                self.around = ()
            return
        around = tuple(dict.fromkeys(rng.choices(_SETTINGS, k=rng.choice([1, 1, 2]))))
        # Autocast skips most of what it is offered.
        self._stretch(rng.randint(1, 4) * (6 if "autocast" in around else 1), around)

    # Interrupts, forks, limits

    def interrupt(self) -> None:
        """Ctrl-C within a read, a call or a commit."""
        kind = self.rng.choice(words("read read copy call commit"))
        operands = [] if kind == "commit" else [self.pick()]
        self.add(f"interrupted_{kind}", *operands, result=False)

    def fork(self) -> None:
        """A tensor as a forked process sees it."""
        self.add("fork", self.pick(), result=False)

    def limits(self) -> None:
        """A stretch with little memory."""
        rng = self.rng
        self.add("limit", rng.choice([0, 64, 256, 1024, 4096, 65536]), result=False)
        self._stretch(rng.randint(1, 5))
        self.add("unlimit", result=False)


def _integral(t: torch.Tensor) -> bool:
    return not t.is_floating_point() and t.dtype is not torch.bool and t.numel() > 0
