"""What calls of losses, embedding bags and cells have to satisfy, as `constraints.py`."""

from __future__ import annotations

from torch_tenon.testing.space import domains
from torch_tenon.testing.space.constraints import UNCHECKED, names_of, rule
from torch_tenon.testing.space.drawing import Drawing, Shape, Size


def fractions(d: Drawing) -> None:
    """Has the numbers be floats, which most kernels of layers take alone; now and then others."""
    if d.dtype not in domains.FLOATS and not d.chance(6):
        d.dtype = d.one(domains.FLOATS)


# Losses


def _reduced(d: Drawing, shape: Shape) -> None:
    """The gradient of a loss, of as many numbers as it is reduced to."""
    d.given["reduction"] = d.whole(0, 2)
    if "grad_output" in names_of(d):
        d.given["grad_output"] = d.tensor([] if d.given["reduction"] else shape)


def _of_some_rows(d: Drawing) -> None:
    """The CPU leaves what it is given for a loss of no rows as it was."""
    if len(d.shape) > 1 and {"out", "output"} & names_of(d):
        d.shape[0] = d.shape[0].with_(lambda n: max(n, 1))


@rule("huber_loss soft_margin_loss")
def _reduced_in_place(d: Drawing) -> None:
    """Into `out` the CPU writes the loss of each number, beside what is a view too, and adds these
    up there."""
    reduction = d.given["reduction"] = d.whole(0, 2) if d.right or not d.chance(4) else 3
    if "out" in names_of(d):
        d.given["self"], d.given["target"] = d.tensor(d.shape), d.like()
        shape = [] if reduction else d.shape
        d.given["out"] = d.tensor(d.one(([Size.of(0)], shape)), expanded=[])


UNCHECKED.update(("huber_loss", "soft_margin_loss"))


@rule("binary_cross_entropy binary_cross_entropy_backward")
def _cross_entropy(d: Drawing) -> None:
    """`F.binary_cross_entropy` expands the weight, and the kernel does not look whether it fits. Of
    a loss that is reduced into `out` it computes as many numbers as that had."""
    fractions(d)
    _reduced(d, d.shape)
    if "out" in names_of(d):
        d.given["reduction"] = 0
        d.given["out"] = d.tensor(d.shape, expanded=[])
    for name in ("self", "target"):
        d.given[name] = d.tensor(d.shape, None, (0.25, 1.0, 0.0, 0.5, 0.9, 1e-3))
    d.given["weight"] = None if d.chance(2) else d.tensor(d.shape)


@rule("multi_margin_loss multi_margin_loss_backward", 1, 2)
def _margin(d: Drawing) -> None:
    fractions(d)
    _of_some_rows(d)
    classes = d.shape[-1]
    d.given["self"] = d.tensor(d.shape)
    d.given["target"] = d.index(d.shape[:-1], classes[0])
    d.given["p"] = d.one((1, 2))
    d.given["margin"] = d.one((1, 0.5, 0, -1.0, 2, domains.inf))
    d.given["weight"] = None if d.chance(2) else d.tensor([classes])
    _reduced(d, d.shape[:-1])


@rule("multilabel_margin_loss_forward", 1, 2)
def _labels(d: Drawing) -> None:
    fractions(d)
    _of_some_rows(d)
    classes = d.shape[-1][0]
    d.given["self"] = d.tensor(d.shape)
    palette = [d.whole(-1, classes - 1) for _ in range(d.whole(1, 5))]
    palette += [] if d.right else [d.one((-2, classes, 2**31))]
    d.given["target"] = d.tensor(d.shape, "int64", palette, times=1)
    d.given["reduction"] = d.whole(0, 2)


UNCHECKED.update(("binary_cross_entropy", "multi_margin_loss", "multilabel_margin_loss_forward"))


@rule("nll_loss2d_forward nll_loss2d_backward", 4, 4)
def _images_of_classes(d: Drawing) -> None:
    fractions(d)
    d.shape = [d.size(4), d.size(8), d.size(5), d.size(5)]
    _classes(d)


@rule("nll_loss_backward", 2, 2)
def _class(d: Drawing) -> None:
    fractions(d)
    d.shape = [d.size(8), d.size(8)]
    _classes(d)


UNCHECKED.update(("nll_loss_backward", "nll_loss2d_backward"))


def _classes(d: Drawing) -> None:
    batch, c, *space = d.shape
    d.given["self"] = d.tensor(d.shape)
    d.given["target"] = d.index([batch, *space], c[0])
    d.given["weight"] = None if d.chance(2) else d.tensor([c])
    d.given["ignore_index"] = d.one((-100, 0, 1))
    _reduced(d, [batch, *space])
    d.given["total_weight"] = d.tensor([], None, (3.0, 1.0, 0.0))


@rule("hardshrink_backward softshrink_backward hardtanh_backward logit_backward")
def _shrunk(d: Drawing) -> None:
    """Where the input or a bound is NaN the CPU's vectors give 0, and its single numbers the
    gradient."""
    d.given["self"] = d.tensor(d.shape, None, domains.ordinary_of(d.dtype))
    for name in ("min_val", "max_val", "lambd", "eps"):
        d.given[name] = d.one((0.0, 0.5, -1.0, 2, domains.inf))


@rule("smooth_l1_loss_backward huber_loss_backward mse_loss_backward rrelu_with_noise_backward")
def _of_one_dtype(d: Drawing) -> None:
    """As the forward gives them, of one shape: a trace has the widest of several dtypes, the CPU
    the first, and the strides of a result that had to grow are others."""
    if d.dtype not in domains.FLOATS:
        d.dtype = d.one(domains.FLOATS)
    for a in d.schema.arguments:
        if str(a.type) == "Tensor" and not a.is_out:
            number = a.name == "grad_output" and d.chance(4)
            d.given[a.name] = d.tensor([] if number else d.shape)


@rule("rrelu_with_noise")
def _random_slopes(d: Drawing) -> None:
    """In training the CPU writes as many numbers as there are given, whatever room is for them."""
    fractions(d)
    d.given["self"] = d.tensor(d.shape)
    d.given["noise"] = d.tensor(d.shape) if d.right else d.like()
    if "out" in names_of(d):
        d.given["out"] = d.tensor(d.shape)


UNCHECKED.add("rrelu_with_noise")


# Embedding bags


@rule("_embedding_bag _embedding_bag_forward_only", 2, 2)
def _bags(d: Drawing) -> None:
    """In order, and within: the fast kernels look at neither where they read. Of rows of nothing a
    trace has other sizes than the kernel."""
    fractions(d)
    d.shape[1] = Size.of(1) if d.shape[1][0] == 0 else d.shape[1]
    rows, count = d.shape[0], d.whole(0, 17)
    d.given["weight"] = d.tensor(d.shape)
    d.given["indices"] = d.index([Size((count,) * 3)], rows[0])
    ends = sorted(d.whole(0, count) for _ in range(d.whole(0, 5)))
    last = d.given["include_last_offset"] = d.chance(3)
    starts = [0, *ends, *([count] if last else [])]
    d.given["offsets"] = d.in_order(starts, Size((len(starts),) * 3))
    mode = d.given["mode"] = d.whole(0, 2)
    some = mode == 0 and d.chance(3)
    d.given["per_sample_weights"] = d.tensor([Size((count,) * 3)]) if some else None
    d.given["padding_idx"] = d.whole(-1, rows[0] - 1) if d.chance(2) else -1
    d.given["sparse"] = False


UNCHECKED.update(("_embedding_bag", "_embedding_bag_forward_only"))


# Cells, attention, steps of optimizers


@rule("_thnn_fused_lstm_cell _thnn_fused_gru_cell", 2, 2)
def _cell(d: Drawing) -> None:
    fractions(d)
    batch, n = d.size(5), d.size(9)
    lstm = d.name == "_thnn_fused_lstm_cell"
    gates = n.with_(lambda k: (4 if lstm else 3) * k)
    d.given["input_gates"] = d.tensor([batch, gates])
    d.given["hidden_gates"] = d.tensor([batch, gates])
    d.given["cx" if lstm else "hx"] = d.tensor([batch, n])
    biased = d.chance(2)
    for name in ("input_bias", "hidden_bias"):
        d.given[name] = d.tensor([gates]) if biased else None


UNCHECKED.update(("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"))


@rule("_scaled_dot_product_flash_attention_for_cpu", 4, 4)
def _attention(d: Drawing) -> None:
    fractions(d)
    batch, heads, n, m, width = d.size(3), d.size(3), d.size(9), d.size(9), d.size(9)
    d.given["query"] = d.tensor([batch, heads, n, width])
    d.given["key"], d.given["value"] = (d.tensor([batch, heads, m, width]) for _ in range(2))
    d.given["dropout_p"] = 0.0
    d.given["attn_mask"] = None
    if not d.given.setdefault("is_causal", d.chance(3)) and d.chance(2):
        d.given["attn_mask"] = d.like([batch, heads, n, m], d.dtype)
    d.given["scale"] = d.one((None, 1.0, 0.5, -2.0, 0.0))


@rule("_amp_update_scale", 0, 0)
def _scale(d: Drawing) -> None:
    one = [Size.of(1)] if d.chance(2) else []
    d.given["self"] = d.tensor(one, "float32", (1.0, 65536.0, 1e38, 1e-38))
    d.given["growth_tracker"] = d.tensor(one, "int32", (d.whole(0, 4),))
    d.given["found_inf"] = d.tensor(one, "float32", (d.one((0.0, 1.0, 2.0, -1.0, domains.nan)),))
    d.given["scale_growth_factor"] = d.one((2.0, 1.0, 1e30))
    d.given["scale_backoff_factor"] = d.one((0.5, 1.0, 0.0))
    d.given["growth_interval"] = d.whole(0, 3)


@rule("_amp_foreach_non_finite_check_and_unscale", 0, 3)
def _unscale(d: Drawing) -> None:
    fractions(d)
    d.given["self"] = [d.tensor(d.shape) for _ in range(d.whole(1, 3))]
    d.given["found_inf"] = d.tensor([], "float32", (d.one((0.0, 1.0)),))
    inverse = d.one((1.0, 0.5, 1e-5, domains.inf, domains.nan, 0.0))
    d.given["inv_scale"] = d.tensor([], "float32", (inverse,))


@rule("_fused_adam _fused_adamw _fused_adagrad", 0, 3)
def _fused_step(d: Drawing) -> None:
    """Their kernels read memory in order, whatever the strides."""
    fractions(d)
    count = d.whole(1, 3)
    greatest = d.given["amsgrad"] = d.chance(3)
    for a in d.schema.arguments:
        if str(a.type) != "List[Tensor]" or a.is_out:
            continue
        if a.name == "state_steps":
            steps = [d.tensor([], "float32", (d.one((1.0, 2.0, 10.0)),)) for _ in range(count)]
            d.given[a.name] = steps
        elif a.name == "max_exp_avg_sqs" and not greatest:
            d.given[a.name] = []
        elif a.name in ("exp_avg_sqs", "max_exp_avg_sqs", "state_sums"):
            some = (0.5, 0.0, 1.0, 3.0)
            d.given[a.name] = [d.tensor(d.shape, None, some, expanded=[]) for _ in range(count)]
        else:
            # Of NaN and another number the kernel's vectors and its rest have not the same maximum.
            usual = domains.ordinary_of(d.dtype) if greatest else None
            d.given[a.name] = [d.tensor(d.shape, None, usual, expanded=[]) for _ in range(count)]
    rate = d.one((0.1, 1e-3, 0.0, 1.0))
    tensor = "tensor_lr" in d.op
    d.given["lr"] = d.tensor([], d.one(("float32", "float64")), (rate,)) if tensor else rate
    d.given |= {"beta1": d.one((0.9, 0.0, 0.5)), "beta2": d.one((0.999, 0.0, 0.5))}
    d.given |= {"weight_decay": d.one((0.0, 0.1)), "eps": d.one((1e-8, 1e-3))}
    d.given["lr_decay"] = d.one((0.0, 0.1))
    d.given["grad_scale"] = d.tensor([], "float32", (2.0,)) if d.chance(3) else None
    d.given["found_inf"] = d.tensor([], "float32", (d.one((0.0, 1.0)),)) if d.chance(4) else None


UNCHECKED.update(("_fused_adam", "_fused_adamw", "_fused_adagrad"))
