"""What the compiler asks of a target: its backend, the one object that knows how the target works.

A program is lowered, scheduled and laid out in memory without knowing what runs it. What depends on
that is asked here: how large a kernel may be, what is fused, how a kernel is written and compiled,
and which ops the target has a library for. docs/compiler.md says how to write one.

A backend is made with its target, when the device is registered, so that making one has to cost
nothing: what takes its time to load is imported by the method that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch_tenon.compiler.capabilities import Capabilities

# Not PyTorch either: it loads the device, which needs this module whole.
if TYPE_CHECKING:
    import torch

    from torch_tenon.compiler.bounded import CacheCounts
    from torch_tenon.compiler.handwritten import Asked, Code, Launch
    from torch_tenon.compiler.kernel import Kernel
    from torch_tenon.compiler.plan import Plan
    from torch_tenon.compiler.schedule import Group, Member, Schedule
    from torch_tenon.ir.index import Index
    from torch_tenon.ir.program import Loop, Matmul
    from torch_tenon.ir.values import Buffer


class KernelFile(NamedTuple):
    """A compiled kernel on disk."""

    path: str  # under the cache directory
    symbol: str
    checksum: int  # of the file's contents, by `_C.checksum`


class PackedCode(NamedTuple):
    """Code of kernels in the file of a program."""

    processor: str  # that it is for; "source" where the target's driver compiles it
    data: bytes


class PackedKernel(NamedTuple):
    """Where a kernel is in the file of a program."""

    code: int | None  # which one; None: any, as each processor's code has all kernels
    symbol: str


class Backend:
    """A target's part of the compiler. Subclass it; `kernel` and `compile` are what it has to have.

    Plans are made on a thread of their own beside graphs on the caller's: methods may be called
    from any thread, several at a time.
    """

    #: The target's name, for messages.
    name: str
    #: Dtypes that kernels store and compute in. What needs others the host computes.
    capabilities: Capabilities = Capabilities()
    #: Ops that the target's library runs in plans, by name without overload ("aten::sort"), where
    #: loops would be slower or nobody has written them. A plan calls them with whole tensors.
    library: frozenset[str] = frozenset()
    #: Dtypes of matrices whose product is a kernel, with an epilogue if there is one; products of
    #: others are calls. Where `capabilities.tiles` has int8 with sums in int32, so has
    #: `torch._int_mm` such a kernel.
    product_dtypes: frozenset[torch.dtype] = frozenset()
    #: Whether the right operand of such a product may be the windows of an image (`Matmul.rows`).
    multiplies_windows: bool = False
    #: Rows of such a product, at most, whose right operand may be of bytes (`Matmul.is_narrow`).
    narrow_rows: int = 0
    #: Columns of a block of weights of four bits (`FourBits`); 0 where it does not multiply them.
    four_bit_block: int = 0
    #: Loop nodes in one kernel, at most.
    most_members: int = 48
    #: Buffers that one kernel reads or writes, at most.
    most_buffers: int = 40
    #: Iterations of a loop that costs less than the launch of a kernel of its own: such a loop is
    #: fused whatever it shares.
    launch_iterations: int = 4096

    def fusion_problem(self, members: Sequence[Member]) -> str | None:
        """Why these loops cannot be one kernel of the target's, in a few words; None if they can.

        Their dependencies are looked at elsewhere. A product is a member of kind "matmul".
        """
        return None

    def prologue_problem(self, loop: Loop, product: Matmul) -> str | None:
        """Why the kernel of a product cannot compute an operand as it reads it, in a few words;
        None if it can. `loop` is pointwise, and nobody else reads what it makes.

        The kernel's group has it in `prologue`. A part of the operand is computed again for each
        piece of the product that needs it.
        """
        return "the target reads operands from memory"

    def piece_length(self, rows: int, length: int, rows_lie_dense: bool) -> int:
        """The elements that each partial result of a reduction should take, 0 for one step.

        `rows` results combine `length` elements each (counts; a run-time size is its estimate).
        `rows_lie_dense`: neighbours in memory belong to different results. A reduction in pieces
        is two kernels, over the pieces and over their results.
        """
        return 0

    def kernel(self, group: Group, kept: set[Buffer]) -> Kernel:
        """The kernel of a fused group; `kept` are the buffers that somebody outside needs.

        Raises NotImplementedError for a group that the target has no code for. The host runs it as
        a step of the plan, on copies; with the target's `host_memory`, and where the host has none
        either, the program runs by reference. A group with a `prologue` is asked for again without:
        its loops are kernels before it then.
        """
        raise NotImplementedError(f"the target {self.name!r} writes no kernels")

    def batches(
        self, order: Schedule, kernels: Sequence[Kernel | None]
    ) -> list[tuple[Group, Kernel | None]]:
        """The groups with their kernels (None for a call) in an order in which they may run, those
        that are worth it several at a time: see `compiler/batch.py`."""
        return list(zip(order.groups, kernels, strict=True))

    def compile(self, kernels: Sequence[Kernel]) -> list[int]:
        """For each kernel what a launch takes it by. Those compiled before are found.

        With the target's `host_memory` it is the address of a function of this process,
        `void (void *const *pointers, const int64_t *sizes, int64_t *status)`; else whatever the
        queue's `launch` is to get. It is good as long as what is returned: a handle that has an
        attribute `owner`, a `_C.KernelOwner`, is held by the plans that are made of it, and its
        code may go with the last one. Without that it is good for the life of the process.

        Raises CompilerMissing when there is nothing to compile with, CompileError when that
        rejects a kernel or takes too long.
        """
        raise NotImplementedError(f"the target {self.name!r} compiles no kernels")

    def handwritten(self, code: Code) -> str:
        """The source of a kernel written by hand, as `compile` takes it, with `code` beside it.

        `code.text` as it is where the queue's `launch` can pass each parameter to it; with the
        target's `host_memory`, with a function around it that has the signature of a generated one.
        A launch gets the memory of the tensors in the order of the parameters, and the numbers that
        `launch_words` gives.
        """
        raise NotImplementedError(f"the target {self.name!r} takes no kernels written by hand")

    def launch_words(self, launch: Launch) -> list[Index | Asked]:
        """The numbers that the queue's `launch` gets with a kernel written by hand: those of its
        parameters as 64 bits. The sizes of the grid and of a group come beside them."""
        return launch.words()

    def tune(self, plan: Plan) -> bytes:
        """Makes the choices that the first run of a compiled plan would make: the fastest way for a
        product, say. For a plan without run-time sizes; it may run kernels on memory of its own.

        Gives what another process needs to run the plan beside its kernels, in a form of its own.
        """
        return b""

    def work_in_background(self) -> None:
        """This process makes plans for others that run meanwhile: `compile` leaves them a
        processor, and what most programs need may be begun."""

    def set_up(self) -> list[str]:
        """Compiles what many programs need, once for all users of the machine; gives what that is,
        in words. Raises CompileError or OSError."""
        return []

    def files(self, kernels: Sequence[Kernel]) -> list[KernelFile] | None:
        """Where other processes find compiled kernels, in their order; further ones, which `tune`
        speaks of, may follow. None where they do not: the plan is not kept then."""
        return None

    def pack(
        self, kernels: Sequence[Kernel], processors: Sequence[str], machine: str | None
    ) -> tuple[list[PackedCode], list[PackedKernel]]:
        """What a program without Python runs kernels by, and where in it each kernel is.

        `processors` are those to compile for, none for the usual ones; `machine` is that of a cross
        compiler. Raises NotImplementedError where the target has no such form, ValueError for a
        processor or machine that it does not know, and what `compile` does.
        """
        raise NotImplementedError(f"the target {self.name!r} has no kernels outside of a process")

    def open_files(self) -> bool:
        """Lets the core load what `files` names. False where plans are not kept on this target."""
        return False

    def identity(self) -> str:
        """What compiled code depends on beside its source: compiler, options, processor, what it is
        linked with. A part of the key of all that is kept on disk.

        Raises CompilerMissing when there is nothing to compile with.
        """
        raise NotImplementedError(f"the target {self.name!r} compiles no kernels")

    def caches(self) -> list[CacheCounts]:
        """What the backend keeps in memory beside what `compiler/bounded.py` counts."""
        return []

    def stop(self) -> None:
        """Ends what `compile` has started, for a process that ends: the call that waits for it
        raises CompileError."""
