"""`flex_attention` in graphs, as the ops that it stands for.

The op has graphs of its own: what changes a score, and which scores count. Here they become ops on
all scores, which are then fused with the products around them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

log = logging.getLogger("torch_tenon.program")

aten = torch.ops.aten
FORWARD = torch.ops.higher_order.flex_attention
BACKWARD = torch.ops.higher_order.flex_attention_backward
_LN2 = math.log(2)


def inline_flex_attention(
    module: GraphModule, decompositions: Mapping[Any, Callable[..., Any]]
) -> None:
    """Replaces the attention ops of a graph, whose nodes carry fake tensors in `meta["val"]`. One
    that cannot be traced stays, and the log says why."""
    graph = module.graph
    found = [n for n in graph.nodes if n.target in (FORWARD, BACKWARD)]
    for node in found:
        compute = _forward if node.target is FORWARD else _backward
        _inline(module, node, compute, decompositions)
    if found:
        graph.eliminate_dead_code()
        module.recompile()


def _inline(
    module: GraphModule,
    node: Node,
    compute: Callable[..., Any],
    decompositions: Mapping[Any, Callable[..., Any]],
) -> None:
    """Puts the ops of `compute` in the place of a node that has its arguments."""
    leaves, tree = tree_flatten((node.args, node.kwargs), is_leaf=lambda x: isinstance(x, Node))
    values = [_value(module, x) for x in leaves]
    given = [k for k, x in enumerate(leaves) if isinstance(x, Node) and _is_given(values[k])]

    def run(*inputs: Any) -> Any:
        filled = list(values)
        for k, x in zip(given, inputs, strict=True):
            filled[k] = x
        args, keywords = tree_unflatten(filled, tree)
        with torch.no_grad():
            return compute(*args, **keywords)

    inputs = [values[k] for k in given]
    mode = detect_fake_mode(inputs)
    assert mode is not None
    try:
        with mode:  # what is made on the way is fake too
            traced = make_fx(run, decomposition_table=dict(decompositions))(*inputs)
    except Exception as error:  # of a mask or a score of somebody's that cannot be traced so
        log.warning("%s is not fused: %s: %s", node.target, type(error).__name__, error)
        log.debug("it was not traced", exc_info=True)
        return
    placeholders = traced.graph.find_nodes(op="placeholder")
    copies: dict[Node, Node] = {p: leaves[k] for p, k in zip(placeholders, given, strict=True)}
    with module.graph.inserting_before(node):
        for n in traced.graph.nodes:
            if n.op == "get_attr":
                copies[n] = module.graph.get_attr(_keep(module, getattr(traced, n.target)))
                copies[n].meta = dict(n.meta)
            elif n.op == "call_function" and _is_of_number(n):
                made = {"dtype": n.meta["val"].dtype, "device": n.meta["val"].device}
                copies[n] = module.graph.call_function(aten.scalar_tensor.default, n.args[:1], made)
                copies[n].meta = dict(n.meta)
            elif n.op == "call_function":
                copies[n] = module.graph.node_copy(n, copies.__getitem__)
    (output,) = traced.graph.find_nodes(op="output")
    _replace(node, torch.fx.node.map_arg(output.args[0], copies.__getitem__), node.meta["val"])
    module.graph.erase_node(node)


def _is_of_number(n: Node) -> bool:
    """Whether a node converts a Python number, which vmap takes for a tensor."""
    return n.target is aten._to_copy.default and isinstance(n.args[0], int | float)


def _value(module: GraphModule, x: Any) -> Any:
    if not isinstance(x, Node):
        return x
    if x.op == "get_attr" and isinstance(held := getattr(module, str(x.target)), GraphModule):
        return held
    return x.meta["val"]


def _is_given(value: Any) -> bool:
    return isinstance(value, Tensor | torch.SymInt | torch.SymFloat)


def _keep(module: GraphModule, value: Any) -> str:
    """The name under which a module has a constant from now on."""
    names = (f"_flex_attention_constant{k}" for k in range(len(module.graph.nodes) + 1))
    name = next(n for n in names if not hasattr(module, n))
    setattr(module, name, value)
    return name


def _replace(node: Node, found: Any, expected: Any) -> None:
    """Has the users of `node`, which picks results out of tuples, take what was found for them."""
    if isinstance(expected, list | tuple):
        for user in list(node.users):
            k: Any = user.args[1]
            _replace(user, found[k], expected[k])
            user.graph.erase_node(user)
    elif expected is None:  # nobody asked for that gradient
        for user in list(node.users):
            user.args = torch.fx.node.map_arg(user.args, lambda n: None if n is node else n)
    else:
        found.meta["val"] = expected  # laid out as the op does
        node.replace_all_uses_with(found)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: Mapping[str, Any],
    score_buffers: Sequence[Any] = (),
    mask_buffers: Sequence[Any] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """The results (B, H, L, Ev), and of each row of scores the logarithm, of base 2, of the sum of
    exponentials, and the greatest, over ln 2. Keys and values may have fewer heads, and a batch
    of 1."""
    key, value = (_each_head(x, query) for x in (key, value))
    scores, mask = _scores(query, key, block_mask[-1], scale, mask_buffers)
    scores = _for_each_score(score_mod, (scores,), scores, score_buffers)
    scores = torch.where(mask, scores, -math.inf)
    greatest = scores.amax(-1, keepdim=True)
    # In a row without scores nothing counts.
    start = torch.where(greatest == -math.inf, 0, greatest)
    parts = _exp(scores - start)
    total = parts.sum(-1, keepdim=True)
    out = parts.to(query.dtype) @ value.to(query.dtype)
    out = (out / torch.where(total == 0, 1, total)).to(query.dtype)
    logarithm = (torch.log(total) + start).squeeze(-1)
    # Of float64 as well they are float32: so says the op.
    return out, (logarithm / _LN2).float(), (greatest.squeeze(-1) / _LN2).float()


def _backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logarithm: Tensor,
    grad_out: Tensor | None,
    grad_logarithm: Tensor | None,
    score_mod: Callable[..., Tensor],
    joint: Callable[..., Any],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: Mapping[str, Any],
    score_buffers: Sequence[Any] = (),
    mask_buffers: Sequence[Any] = (),
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor | None, ...]]:
    """The gradients of query, key, value and of what `score_mod` reads; `joint` is the gradient of
    `score_mod`."""
    keys, values = (_each_head(x, query) for x in (key, value))
    scores, mask = _scores(query, keys, block_mask[-1], scale, mask_buffers)
    changed = _for_each_score(score_mod, (scores,), scores, score_buffers)
    total = logarithm.unsqueeze(-1) * _LN2
    counts = torch.logical_and(mask, total != -math.inf)
    weights = torch.where(counts, _exp(changed - total), 0)
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    grad_values = weights.to(query.dtype).mT @ grad_out
    wide = weights.dtype
    grad_weights = grad_out.to(wide) @ values.to(wide).mT
    shared = (out.to(wide) * grad_out.to(wide)).sum(-1, keepdim=True)
    if grad_logarithm is not None:
        shared = shared - grad_logarithm.unsqueeze(-1) / _LN2
    grad_changed = weights * (grad_weights - shared)
    grads = _for_each_score(joint, (scores, grad_changed), scores, score_buffers)
    grad_scores = torch.where(mask, grads[0] * scale, 0).to(query.dtype)
    return (
        grad_scores @ keys,
        _of_heads(grad_scores.mT @ query, key),
        _of_heads(grad_values, value),
        tuple(grads[5:]),
    )


def _exp(x: Tensor) -> Tensor:
    """The exponential of numbers of at most about 0. Beside the 1 of the greatest score what is no
    normal number is nothing, and products of such numbers take a hundred times as long."""
    least = math.log(torch.finfo(x.dtype).tiny) + 1
    return torch.where(x < least, 0, torch.exp(x.clamp_min(least)))


def _each_head(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values for each head and batch of the query."""
    batch, heads = query.shape[:2]
    groups = heads // x.shape[1]
    if groups > 1:
        x = x.unsqueeze(2).expand(-1, -1, groups, -1, -1).flatten(1, 2)
    return x.expand(batch, -1, -1, -1)


def _of_heads(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of keys or values from those of `_each_head`."""
    groups = grad.shape[1] // x.shape[1]
    if groups > 1:
        grad = grad.unflatten(1, (x.shape[1], groups)).sum(2)
    return grad.sum(0, keepdim=True) if x.shape[0] != grad.shape[0] else grad


def _scores(
    query: Tensor,
    key: Tensor,
    mask_mod: Callable[..., Tensor],
    scale: float,
    buffers: Sequence[Any],
) -> tuple[Tensor, Tensor]:
    """The scores (B, H, L, S) before they are changed, and which of them count."""
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    scores = (query.to(wide) @ key.to(wide).mT) * scale
    return scores, _for_each_score(mask_mod, (), scores, buffers)


def _for_each_score(
    function: Callable[..., Any], inputs: Sequence[Tensor], scores: Tensor, buffers: Sequence[Any]
) -> Any:
    """The function of each element of the inputs, which have the sizes of the scores, and where
    that is. Of what the function is a gradient, those of its buffers are summed."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    places = [torch.arange(n, device=scores.device) for n in scores.shape]
    whole: dict[str, Any] = {"prefix": (0,) if inputs else ()}
    more = list(inputs[1:])
    if more:
        whole["out_dims"] = [0, None, None, None, None, *[None] * len(buffers)]
    suffix = (*(0 for _ in more), *(None for _ in buffers))
    mapped = _vmap_for_bhqkv(function, suffix=suffix, **whole)
    with TransformGetItemToIndex():
        return mapped(*inputs[:1], *places, *more, *buffers)
