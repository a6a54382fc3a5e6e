"""Custom ops and their kernels, declared in a YAML file: `torch_tenon.load_kernels`.

A file is a list of ops:

    - func: demo::scale(Tensor x, float factor) -> Tensor
      result: like x
      kernels:
        - device: host                # or a target's name
          source: scale.src           # beside this file; or the text itself, after a `|`
          entry: scale
          arguments:
            - float32 result
            - float32 x
            - float64 factor
            - int64 numel(x)
          global_size: numel(x)       # for targets with a grid; a list for several axes
          local_size: 64
      backward:
        x: demo::scale(grad, factor)  # an expression of ops for each gradient
      decomposition: x * factor       # where no kernel is; or module:function

`KernelSource` says what `arguments` may be. `result` is `like x`, or `{sizes: [...], dtype: ...}`,
or a list of such where there are several; `fake: module:function` makes the results instead.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch._ops import OpOverload

from torch_tenon.ops.custom import CustomOp, gradient_expressions
from torch_tenon.ops.declarations import (
    DeclarationError,
    KernelSource,
    ResultLike,
    Scope,
    maker,
    result_like,
    result_of,
)
from torch_tenon.ops.manifest import nearest

_OP_KEYS = ("func", "result", "fake", "kernels", "backward", "decomposition")
_KERNEL_KEYS = ("device", "source", "entry", "arguments", "global_size", "local_size")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

Path_ = tuple[str | int, ...]


class KernelFileError(ValueError):
    """A file of kernels that says what cannot be; the text names the file and the line."""


def load_kernels(path: str | Path) -> dict[str, OpOverload]:
    """Makes the custom ops that a YAML file declares; returns them by qualified name.

    The source for the target in use is built. Raises FileNotFoundError without the file,
    KernelFileError for what it says wrongly, CompileError for a source that does not build; then
    none of its ops is there.
    """
    return _File(Path(path)).load()


class _File:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[Path_, int] = {}
        self.blocks: set[Path_] = set()

    def load(self) -> dict[str, OpOverload]:
        rows = self._read()
        made: list[CustomOp] = []
        try:
            for k, row in enumerate(rows):
                made.append(self._told(k, lambda row=row, k=k: self._define(row, k)))  # type: ignore[misc]
            ready = [
                self._told(k, lambda op=op, row=row: self._ways(op, row))  # type: ignore[misc]
                for k, (op, row) in enumerate(zip(made, rows, strict=True))
            ]
            for op in made:
                op.build()
        except BaseException:
            for op in made:
                op.undo()
            raise
        return {
            op.name: op.register(results, decomposition, gradients)
            for op, (results, decomposition, gradients) in zip(made, ready, strict=True)
        }

    def _told(self, row: int, work: Callable[[], Any]) -> Any:
        """What `work` gives; its errors with file and line."""
        try:
            return work()
        except DeclarationError as error:
            raise self._error(str(error), row, *error.path) from None

    def _error(self, text: str, *path: str | int) -> KernelFileError:
        while path not in self.lines:
            path = path[:-1]
        return KernelFileError(f"{self.path}:{self.lines[path]}: {text}")

    # YAML

    def _read(self) -> list[dict[str, Any]]:
        import yaml

        loader = yaml.SafeLoader(self.path.read_text())
        loader.name = str(self.path)
        try:
            node = loader.get_single_node()
            self.lines[()] = 1
            data = None if node is None else self._plain(loader, node, ())
        except yaml.MarkedYAMLError as error:
            line = 1 if error.problem_mark is None else error.problem_mark.line + 1
            raise KernelFileError(f"{self.path}:{line}: this is no YAML: {error.problem}") from None
        finally:
            loader.dispose()
        if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
            raise KernelFileError(f"{self.path}:1: the file has to be a list of ops, `- func: ...`")
        return data

    def _plain(self, loader: Any, node: Any, path: Path_) -> Any:
        """A node as plain data; notes the line of each part."""
        import yaml

        self.lines[path] = node.start_mark.line + 1
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(loader, n, (*path, k)) for k, n in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            if node.style in ("|", ">"):
                self.blocks.add(path)
            return loader.construct_object(node)
        found: dict[str, Any] = {}
        for key_node, value in node.value:
            key = str(loader.construct_object(key_node))
            if key in found:
                raise KernelFileError(
                    f"{self.path}:{key_node.start_mark.line + 1}: `{key}` comes twice"
                )
            found[key] = self._plain(loader, value, (*path, key))
            self.lines[(*path, key)] = key_node.start_mark.line + 1
        return found

    # Ops

    def _define(self, row: dict[str, Any], number: int) -> CustomOp:
        _require_keys(row, _OP_KEYS, ("func",), "an op")
        func, kernels = row["func"], row.get("kernels", [])
        if not isinstance(func, str):
            raise DeclarationError(f"`func` has to be a schema, not {func!r}", "func")
        if not isinstance(kernels, list) or not all(isinstance(k, dict) for k in kernels):
            raise DeclarationError("`kernels` has to be a list, `- device: ...`", "kernels")
        if not kernels and "decomposition" not in row:
            raise DeclarationError(f"{func}: without `kernels` or `decomposition` nothing runs it")
        sources = []
        for k, kernel in enumerate(kernels):
            try:
                sources.append(self._source(kernel, (number, "kernels", k)))
            except DeclarationError as error:
                raise error.at("kernels", k) from None
        return CustomOp(func, sources)

    def _source(self, row: dict[str, Any], path: Path_) -> KernelSource:
        _require_keys(row, _KERNEL_KEYS, _KERNEL_KEYS[:4], "a kernel")
        for key in ("device", "source", "entry"):
            if not isinstance(row[key], str):
                raise DeclarationError(f"`{key}` has to be text, not {row[key]!r}", key)
        for key in ("arguments", "global_size", "local_size"):
            given = row.get(key, [])
            if isinstance(given, dict) or (key == "arguments" and not isinstance(given, list)):
                raise DeclarationError(f"`{key}` has to be a list, not {row[key]!r}", key)
        place = (*path, "source")
        if place in self.blocks:
            text, file, line = row["source"], str(self.path), self.lines[place] + 1
        else:
            source = self.path.parent / row["source"]
            try:
                text, file, line = source.read_text(), str(source), 1
            except OSError as error:
                raise DeclarationError(
                    f"the source {source} cannot be read: {error.strerror}", "source"
                ) from None
        listed = {}
        for key in ("arguments", "global_size", "local_size"):
            given = row.get(key, [])
            listed[key] = [str(n) for n in (given if isinstance(given, list) else [given])]
        return KernelSource(row["device"], text, row["entry"], **listed, file=file, line=line)

    def _ways(self, op: CustomOp, row: dict[str, Any]) -> tuple[Any, Any, Any]:
        """What makes the op's results, its decomposition and its gradients."""
        backward = row.get("backward", {})
        if not isinstance(backward, dict):
            raise DeclarationError(
                "`backward` has to be a mapping from an argument to an expression", "backward"
            )
        try:
            texts = {name: str(text) for name, text in backward.items()}
            gradients = gradient_expressions(op.scope, texts)
        except DeclarationError as error:
            raise error.at("backward") from None
        decomposition = None
        if "decomposition" in row:
            decomposition = self._decomposition(op, str(row["decomposition"]))
        return self._results(op, row), decomposition, gradients or None

    def _decomposition(self, op: CustomOp, text: str) -> Callable[..., Any]:
        if _FUNCTION.fullmatch(text):
            return self._function(text, "decomposition")
        return op.expression(text)

    def _results(self, op: CustomOp, row: dict[str, Any]) -> Callable[..., Any]:
        if "fake" in row:
            if not _FUNCTION.fullmatch(str(row["fake"])):
                raise DeclarationError(f"`fake` is module:function, not {row['fake']!r}", "fake")
            return self._function(row["fake"], "fake")
        if "result" not in row:
            if not op.scope.results:
                return lambda *given: None
            raise DeclarationError(f"{op.name} says by no `result` what its results are")
        several = isinstance(row["result"], list)
        declared = row["result"] if several else [row["result"]]
        if len(declared) != len(op.scope.results):
            raise DeclarationError(
                f"{op.name} has {len(op.scope.results)} results, and {len(declared)} are declared",
                "result",
            )
        results = []
        for k, one in enumerate(declared):
            try:
                results.append(_result(one, op.scope))
            except DeclarationError as error:
                raise error.at("result", *([k] if several else [])) from None
        return maker(op.scope, results)

    def _function(self, text: str, key: str) -> Callable[..., Any]:
        module, _, name = text.partition(":")
        # As for a script: what lies beside the file may be imported.
        sys.path.insert(0, str(self.path.parent.resolve()))
        try:
            found: Callable[..., Any] = getattr(importlib.import_module(module), name)
            return found
        except (ImportError, AttributeError) as error:
            raise DeclarationError(f"`{key}` names {text}: {error}", key) from None
        finally:
            sys.path.pop(0)


def _require_keys(
    row: dict[str, Any], known: tuple[str, ...], needed: tuple[str, ...], what: str
) -> None:
    for key in row:
        if key not in known:
            raise DeclarationError(f"{what} has no key `{key}`{nearest(key, known)}", key)
    for key in needed:
        if key not in row:
            raise DeclarationError(f"{what} needs `{key}`")


def _result(one: Any, scope: Scope) -> ResultLike:
    if isinstance(one, str):
        return result_like(one, scope)
    if not isinstance(one, dict):
        raise DeclarationError(f"a result is `like NAME`, or `sizes` and `dtype`, not {one!r}")
    _require_keys(one, ("sizes", "dtype"), ("sizes", "dtype"), "a result")
    if not isinstance(one["sizes"], list):
        raise DeclarationError("`sizes` has to be a list", "sizes")
    return result_of(one["sizes"], str(one["dtype"]), scope)
