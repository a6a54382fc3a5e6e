"""Ops on lists of tensors (`torch._foreach_add_`) that write them: in which order they do."""

from __future__ import annotations

from typing import Any

_PREFIX = "aten::_foreach_"


def one_by_one(name: str, arguments: list[Any], written: list[int]) -> list[list[Any]]:
    """A call that writes its lists in place as calls on lists of one, in order, where one of them
    uses memory that another one writes; else none.

    `name` and `arguments` are a window's, `written` says which of the arguments are.
    """
    if not name.startswith(_PREFIX):
        return []

    def one(x: Any, k: int) -> Any:
        is_list = x[0] == "list" or isinstance(x[1], list)
        return (x[0], [x[1][k]]) if is_list else x

    rows = [[one(x, k) for x in arguments] for k in range(len(arguments[0][1]))]
    users: dict[int, set[int]] = {}  # by slot: the rows that use it
    for k, row in enumerate(rows):
        for x in row:
            for t in x[1] if x[0] == "list" else [x]:
                if t[0] == "tensor":
                    users.setdefault(t[1], set()).add(k)
    meet = any(len(users[row[i][1][0][1]]) > 1 for row in rows for i in written)
    return rows if meet else []
