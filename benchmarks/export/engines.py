"""Ways to run a model that was made a file: what makes it, and what loads it.

An engine's `make` needs PyTorch. `load` gives a function of NumPy arrays, and imports what it needs
itself: what starting costs is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


class Engine:
    """One way; `suffix` is that of its file."""

    suffix = ""

    def make(self, model: Any, args: tuple[Any, ...], path: Path) -> None:
        """Writes the file."""
        raise NotImplementedError

    def load(self, path: Path, threads: int) -> Run:
        """What runs it on so many threads."""
        raise NotImplementedError


class Tenon(Engine):
    """`torch_tenon.export` and `torch_tenon.load`."""

    suffix = ".tenon"

    def make(self, model: Any, args: tuple[Any, ...], path: Path) -> None:
        """For this processor's kind and the one before."""
        import torch_tenon

        torch_tenon.export(model, args, path)

    def load(self, path: Path, threads: int) -> Run:
        """Without PyTorch."""
        import torch_tenon

        program = torch_tenon.load(path, threads=threads)
        method = next(iter(program.methods.values()))

        def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
            found = method(*inputs)
            return list(found) if isinstance(found, tuple) else [found]

        return run


class AOTInductor(Engine):
    """Inductor's code in a package, which libtorch loads."""

    suffix = ".pt2"

    def make(self, model: Any, args: tuple[Any, ...], path: Path) -> None:
        """With its own defaults."""
        import torch

        program = torch.export.export(model, args)
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))

    def load(self, path: Path, threads: int) -> Run:
        """In a process with PyTorch, which it needs."""
        import torch

        torch.set_num_threads(threads)
        loaded = torch._inductor.aoti_load_package(str(path))

        def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
            with torch.no_grad():
                found = loaded(*map(torch.from_numpy, inputs))
            return [t.numpy() for t in torch.utils._pytree.tree_leaves(found)]

        return run


class OnnxRuntime(Engine):
    """ONNX Runtime, by PyTorch's own exporter to ONNX."""

    suffix = ".onnx"

    def make(self, model: Any, args: tuple[Any, ...], path: Path) -> None:
        """By `torch.onnx.export`."""
        import torch

        torch.onnx.export(model, args, str(path), dynamo=True, verbose=False)

    def load(self, path: Path, threads: int) -> Run:
        """With all of its optimisations."""
        import onnxruntime  # type: ignore[import-not-found]

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
        names = [x.name for x in session.get_inputs()]
        return lambda inputs: session.run(None, dict(zip(names, inputs, strict=True)))


class ExecuTorch(Engine):
    """ExecuTorch with XNNPACK, and its portable kernels for the rest."""

    suffix = ".pte"

    def make(self, model: Any, args: tuple[Any, ...], path: Path) -> None:
        """Partitioned for XNNPACK."""
        import torch
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import (  # type: ignore[import-not-found]
            XnnpackPartitioner,
        )
        from executorch.exir import to_edge_transform_and_lower  # type: ignore[import-not-found]

        program = torch.export.export(model, args)
        lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
        path.write_bytes(lowered.to_executorch().buffer)

    def load(self, path: Path, threads: int) -> Run:
        """By its bindings."""
        import torch
        from executorch.extension.pybindings import (  # type: ignore[import-not-found]
            portable_lib,
        )

        torch.set_num_threads(threads)
        if hasattr(portable_lib, "_threadpool_reset"):
            portable_lib._threadpool_reset(threads)
        loaded = portable_lib._load_for_executorch(str(path))

        def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
            return [t.numpy() for t in loaded.forward(tuple(map(torch.from_numpy, inputs)))]

        return run


ENGINES: dict[str, Engine] = {
    "tenon": Tenon(),
    "aotinductor": AOTInductor(),
    "onnxruntime": OnnxRuntime(),
    "executorch": ExecuTorch(),
}
