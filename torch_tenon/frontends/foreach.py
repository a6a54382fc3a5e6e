"""Ops on lists of tensors (`torch._foreach_add_`, steps of fused optimizers) that write them: in
which order they do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def one_by_one(name: str, arguments: list[Any], written: list[int]) -> list[list[Any]]:
    """A call of PyTorch's that writes its lists in place as calls on lists of one, in order, where
    one of them uses memory that another one writes; else none.

    `name` and `arguments` are a window's, `written` says which of the arguments are. All of
    PyTorch's ops whose first argument is a list that they write go through their lists so.
    """
    if not name.startswith("aten::") or 0 not in written or arguments[0][0] != "list":
        return []
    count = len(arguments[0][1])

    def one(x: Any, k: int) -> Any:
        is_list = x[0] == "list" or isinstance(x[1], list)
        return (x[0], x[1][k : k + 1]) if is_list else x  # one that is not needed is empty

    rows = [[one(x, k) for x in arguments] for k in range(count)]
    users: dict[int, set[int]] = {}  # by slot: the rows that have it in a list
    for k, row in enumerate(rows):
        for number in (n for x in row if x[0] == "list" for n in _slots(x)):
            users.setdefault(number, set()).add(k)
    for number in (n for x in arguments if x[0] == "tensor" for n in _slots(x)):
        if number in users:  # each row uses it
            users[number].update(range(count))
    changed = {n for row in rows for i in written for n in _slots(row[i])}
    return rows if any(len(users.get(n, ())) > 1 for n in changed) else []


def _slots(x: Any) -> Iterator[int]:
    for t in x[1] if x[0] == "list" else [x]:
        if t[0] == "tensor":
            yield t[1]
