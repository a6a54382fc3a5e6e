"""What a statement of a random program can be: Python source with places for operands.

The names in the source are the program's variables, PyTorch's `torch` and `F`, the devices `D0`,
`D1` and `H` (the host; on the CPU's run all three are the CPU), the functions below, which make
the same numbers on every device, and those of `surroundings.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


@dataclass(frozen=True)
class Operation:
    """A statement's source, and what it does to the numbers.

    `exact`: results are the same bits on every device, as those of a copy or a view. `writes`: the
    operand that is written to. `reads`: its value is observed when it runs; `asks`: it looks at
    values of its operands. `late`: it fails by what its operands hold, which a device may notice
    later; `instead`: what stands for it on the CPU then, with a result of the same sizes. `waits`:
    errors of what was called before may come out here.
    """

    name: str
    source: str
    exact: bool = False
    view: bool = False
    writes: int | None = None
    reads: bool = False
    asks: bool = False
    late: bool = False
    instead: str | None = None
    waits: bool = False


def made(
    seed: int, sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A tensor of numbers that `seed` tells; some are zero, one, infinite or not a number."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return (torch.rand(sizes, generator=generator) < 0.5).to(device)
    if not dtype.is_floating_point:
        low = 0 if dtype is torch.uint8 else -20
        return torch.randint(low, 21, sizes, generator=generator, dtype=dtype).to(device)
    found = torch.randn(sizes, generator=generator, dtype=torch.float64)
    if seed % 5 == 0:
        special = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, torch.inf, -torch.inf, torch.nan])
        choice = torch.randint(0, 40, sizes, generator=generator)
        found = torch.where(choice < 8, special.to(found.dtype)[choice.clamp(max=7)], found)
    return found.to(dtype).to(device)


def places(seed: int, size: int, sizes: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Indices into a dimension of `size`, on the device of `like`; all different in each row if
    they fit, so that writes with them have one meaning."""
    generator = torch.Generator().manual_seed(seed)
    count = sizes[-1] if sizes else 1
    rows = torch.Size(sizes[:-1]).numel()
    if size >= count:
        found = torch.stack(
            [torch.randperm(size, generator=generator)[:count] for _ in range(rows)]
        )
    else:
        found = torch.randint(0, size, (rows, count), generator=generator)
    return found.reshape(sizes).to(like.device)


def within(seed: int, size: int, sizes: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """As `places`, but computed on the device."""
    found = places(seed, size, sizes, like.new_empty(0, device="cpu"))
    return (found - 1).to(like.device) + 1


def beyond(seed: int, size: int, sizes: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """As `within`, but one of them is beyond the size."""
    found = places(seed, size, sizes, like.new_empty(0, device="cpu"))
    if found.numel():
        found.view(-1)[seed % found.numel()] = size + seed % 3
    return (found - 1).to(like.device) + 1


def tame(x: float) -> float:
    """A number that came from data, of moderate size."""
    return min(max(float(x), -3.0), 3.0) if x == x else 0.5


FUNCTIONS: dict[str, Any] = {f.__name__: f for f in (made, places, within, beyond, tame)}
NAMESPACE: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, **FUNCTIONS}

# Source that is one call of one or two tensors, by name.
UNARY = words(
    """
    tanh sigmoid sin cos atan relu erf erfc abs neg exp2 log1p expm1 floor ceil round trunc frac
    sign sqrt rsqrt reciprocal log square isnan isfinite isinf logical_not signbit exp sinc asinh
    lgamma digamma deg2rad nan_to_num i0 positive tan
    """
)
# Not tanhshrink: x - tanh(x) loses more digits than noise on its operand shows.
ACTIVATIONS = words(
    """
    gelu silu softplus leaky_relu elu hardtanh hardsigmoid hardswish mish selu softsign logsigmoid
    relu6 celu softshrink hardshrink
    """
)
BINARY = words(
    """
    add sub mul div maximum minimum atan2 hypot fmod remainder eq ne lt le gt ge logical_and
    logical_or logical_xor copysign fmax fmin floor_divide logaddexp heaviside nextafter xlogy
    true_divide
    """
)
BITWISE = ["bitwise_and", "bitwise_or", "bitwise_xor"]
REDUCTIONS = words(
    """
    sum mean amax amin prod var std any all argmax argmin logsumexp nansum count_nonzero
    """
)
SCANS = ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"]
EXACT = {"abs", "neg", "relu", "positive", "maximum", "minimum", "fmax", "fmin"}


def _harmless(source: str) -> str:
    return source.replace("beyond(", "within(").replace("zeros_like(", "ones_like(")


def _late(name: str, source: str, writes: int | None = None) -> Operation:
    """One that fails late; with other indices or another divisor it does not."""
    stands = _harmless(source) if writes is None else None
    return Operation(name, source, exact=True, writes=writes, late=True, instead=stands)


_LIST: list[Operation] = [
    # Making
    Operation("made", "made({0}, {1}, {2}, {3})"),
    Operation("full", "torch.full({0}, {1}, dtype={2}, device={3})", exact=True),
    Operation("arange", "torch.arange({0}, {1}, {2}, device={3})", exact=True),
    Operation("linspace", "torch.linspace({0}, {1}, {2}, device={3})"),
    Operation("zeros", "torch.zeros({0}, dtype={2}, device={3})", exact=True),
    Operation("ones", "torch.ones({0}, dtype={2}, device={3})", exact=True),
    Operation("tensor", "torch.tensor({0}, dtype={1}, device={2})", exact=True),
    Operation("scalar", "torch.tensor({0})", exact=True),
    Operation("eye", "torch.eye({0}, {1}, device={2})", exact=True),
    Operation("empty_fill", "torch.empty({0}, dtype={2}, device={3}).fill_({1})", exact=True),
    Operation("zeros_like", "torch.zeros_like({0})", exact=True),
    Operation("ones_like", "torch.ones_like({0})", exact=True),
    Operation("full_like", "torch.full_like({0}, {1})", exact=True),
    Operation("new_zeros", "{0}.new_zeros({1})", exact=True),
    Operation("rand_zero", "torch.rand_like({0}.detach()).floor()", exact=True),
    Operation("dropout", "F.dropout({0}, 0.0, True)", exact=True),
    Operation("tril_indices", "torch.tril_indices({0}, {1}, device={2})", exact=True),
    # Pointwise
    *[Operation(n, f"torch.{n}({{0}})", exact=n in EXACT) for n in UNARY],
    *[Operation(f"F_{n}", f"F.{n}({{0}})") for n in ACTIVATIONS],
    *[Operation(n, f"torch.{n}({{0}}, {{1}})", exact=n in EXACT) for n in [*BINARY, *BITWISE]],
    Operation("add_alpha", "torch.add({0}, {1}, alpha={2})"),
    Operation("sub_alpha", "torch.sub({0}, {1}, alpha={2})"),
    Operation("rsub", "{1} - {0}"),
    Operation("rdiv", "{1} / {0}"),
    Operation("div_mode", "torch.div({0}, {1}, rounding_mode='{2}')"),
    Operation("pow", "{0} ** {1}"),
    Operation("pow_abs", "torch.pow({0}.abs(), {1})"),
    Operation("rpow", "{1} ** {0}.clamp(-4, 4)"),
    Operation("clamp", "{0}.clamp({1}, {2})", exact=True),
    Operation("clamp_tensor", "torch.clamp({0}, {1}, {2})", exact=True),
    Operation("lerp", "torch.lerp({0}, {1}, {2})"),
    Operation("addcmul", "torch.addcmul({0}, {1}, {2}, value={3})"),
    Operation("addcdiv", "torch.addcdiv({0}, {1}, {2}, value={3})"),
    Operation("where", "torch.where({0}, {1}, {2})", exact=True),
    Operation("where_gt", "torch.where({0} > {3}, {1}, {2})"),
    Operation("masked_fill", "{0}.masked_fill({1}, {2})", exact=True),
    Operation("shift", "{0} << {1}"),
    Operation("rshift", "{0} >> {1}"),
    Operation("invert", "~{0}"),
    Operation("threshold", "F.threshold({0}, {1}, {2})"),
    Operation("glu", "F.glu({0}, {1})"),
    Operation("isclose", "torch.isclose({0}, {1})"),
    # Complex numbers
    Operation("complex", "torch.complex({0}, {1})", exact=True),
    Operation("polar", "torch.polar({0}, {1})"),
    Operation("times_complex", "{0} * {1}"),
    *[Operation(n, f"torch.{n}({{0}})") for n in ["angle", "sgn", "conj_physical"]],
    Operation("real", "{0}.real", view=True),
    Operation("imag", "{0}.imag", view=True),
    Operation("conj", "{0}.conj()", view=True),
    Operation("view_as_real", "torch.view_as_real({0})", view=True),
    Operation("view_as_complex", "torch.view_as_complex({0}.unflatten(-1, (-1, 2)))", view=True),
    # Dtypes
    Operation("to", "{0}.to({1})"),
    Operation("to_int", "{0}.nan_to_num(0.0, 9.0, -9.0).clamp({2}, 100).to({1})"),
    Operation("type_as", "{0}.type_as({1})"),
    # Reductions
    *[Operation(n, f"torch.{n}({{0}})") for n in REDUCTIONS if n != "logsumexp"],
    *[
        Operation(f"{n}_dim", f"torch.{n}({{0}}, {{1}}, keepdim={{2}})")
        for n in REDUCTIONS
        if n != "count_nonzero"
    ],
    Operation("sum_dtype", "torch.sum({0}, {1}, dtype={2})"),
    Operation("max_dim", "torch.max({0}, {1})[{2}]"),
    Operation("min_dim", "torch.min({0}, {1})[{2}]"),
    Operation("aminmax", "torch.aminmax({0})[{1}]"),
    Operation("norm", "torch.linalg.vector_norm({0}, {1}, {2})"),
    Operation("var_mean", "torch.var_mean({0}, {1})[{2}]"),
    Operation("cumsum", "torch.cumsum({0}, {1})"),
    Operation("cumprod", "torch.cumprod({0}, {1})"),
    Operation("cummax", "torch.cummax({0}, {1})[{2}]"),
    Operation("cummin", "torch.cummin({0}, {1})[{2}]"),
    Operation("logcumsumexp", "torch.logcumsumexp({0}, {1})"),
    Operation("softmax", "torch.softmax({0}, {1})"),
    Operation("log_softmax", "torch.log_softmax({0}, {1})"),
    Operation("layer_norm", "F.layer_norm({0}, {0}.shape[-1:])"),
    Operation("rms_norm", "F.rms_norm({0}, {0}.shape[-1:])"),
    Operation("batch_norm", "F.batch_norm({0}, None, None, training=True)"),
    Operation("group_norm", "F.group_norm({0}, 1)"),
    Operation("sort", "torch.sort({0}, {1}, stable=True)[{2}]"),
    Operation("topk", "torch.topk({0}, 1, {1})[0]"),
    Operation("median", "torch.median({0})"),
    Operation("unique", "torch.unique({0})"),
    # Matrices
    Operation("matmul", "torch.matmul({0}, {1})"),
    Operation("addmm", "torch.addmm({0}, {1}, {2}, beta={3}, alpha={4})"),
    Operation("linear", "F.linear({0}, {1})"),
    Operation("linear_bias", "F.linear({0}, {1}, {2})"),
    Operation("gram", "{0} @ {0}.mT"),
    Operation("outer", "torch.outer({0}, {1})"),
    Operation("conv1d", "F.conv1d({0}, {1}, padding=1)"),
    Operation("bilinear", "torch.einsum('...i,...j->...', {0}, {1})"),
    Operation("attention", "F.scaled_dot_product_attention({0}, {0}, {0})"),
    Operation("max_pool1d", "F.max_pool1d({0}, 2)"),
    Operation("avg_pool1d", "F.avg_pool1d({0}, 2)"),
    # Indexing
    Operation(
        "gather", "torch.gather({0}, {1}, places({2}, {0}.shape[{1}], {3}, {0}))", exact=True
    ),
    Operation(
        "index_select", "{0}.index_select({1}, places({2}, {0}.shape[{1}], {3}, {0}))", exact=True
    ),
    Operation("index", "{0}[places({1}, {0}.shape[0], {2}, {0})]", exact=True),
    Operation("index_negative", "{0}[-1 - places({1}, {0}.shape[0], {2}, {0})]", exact=True),
    Operation(
        "index_two",
        "{0}[places({1}, {0}.shape[0], (3,), {0}), places({2}, {0}.shape[1], {3}, {0})]",
        exact=True,
    ),
    Operation("index_last", "{0}[..., places({1}, {0}.shape[-1], {2}, {0})]", exact=True),
    Operation("index_mask", "{0}[{1}]", exact=True),
    Operation("masked_select", "torch.masked_select({0}, {1})", exact=True),
    Operation("nonzero", "torch.nonzero({0})", exact=True),
    Operation("embedding", "F.embedding(places({1}, {0}.shape[0], {2}, {0}), {0})", exact=True),
    Operation("one_hot", "F.one_hot(places({0}, {1}, {2}, {3}), {1})", exact=True),
    Operation("take", "torch.take({0}, places({1}, {0}.numel(), {2}, {0}))", exact=True),
    Operation("take_along", "torch.take_along_dim({0}, {0}.argmax({1}, keepdim=True), {1})"),
    Operation("tril", "torch.tril({0}, {1})", exact=True),
    Operation("triu", "torch.triu({0}, {1})", exact=True),
    Operation("flip", "torch.flip({0}, {1})", exact=True),
    Operation("roll", "torch.roll({0}, {1}, {2})", exact=True),
    Operation("cat", "torch.cat([{0}, {1}], {2})", exact=True),
    Operation("stack", "torch.stack([{0}, {0}], {1})", exact=True),
    Operation("pad", "F.pad({0}, {1}, value={2})", exact=True),
    Operation("pad_reflect", "F.pad({0}, (1, 1), mode='reflect')", exact=True),
    Operation("repeat", "{0}.repeat({1})", exact=True),
    Operation("repeat_interleave", "{0}.repeat_interleave({1}, {2})", exact=True),
    Operation(
        "scatter", "{0}.scatter({1}, places({2}, {0}.shape[{1}], {3}, {0}), {4})", exact=True
    ),
    Operation(
        "scatter_add", "{0}.scatter_add({1}, places({2}, {0}.shape[{1}], {0}.shape, {0}), {0})"
    ),
    Operation("diag_embed", "torch.diag_embed({0})", exact=True),
    Operation("clone", "{0}.clone()", exact=True),
    Operation("contiguous", "{0}.contiguous()", exact=True),
    Operation("interpolate", "F.interpolate({0}, scale_factor=2)", exact=True),
    Operation("bucketize", "torch.bucketize({0}, {1}.flatten().sort()[0])", exact=True),
    # Views
    Operation("t", "{0}.mT", view=True),
    Operation("transpose", "{0}.transpose({1}, {2})", view=True),
    Operation("permute", "{0}.permute({1})", view=True),
    Operation("select", "{0}.select({1}, {2})", view=True),
    Operation("narrow", "{0}.narrow({1}, {2}, {3})", view=True),
    Operation("slice_first", "{0}[{1}:{2}:{3}]", view=True),
    Operation("slice_last", "{0}[..., {1}:{2}:{3}]", view=True),
    Operation("expand", "{0}.expand({1})", view=True),
    Operation("view_flat", "{0}.view(-1)", view=True),
    Operation("view", "{0}.view({1})", view=True),
    Operation("reshape", "{0}.reshape({1})", view=True),
    Operation("unsqueeze", "{0}.unsqueeze({1})", view=True),
    Operation("squeeze", "{0}.squeeze()", view=True),
    Operation("unfold", "{0}.unfold({1}, {2}, {3})", view=True),
    Operation("diagonal", "{0}.diagonal({1})", view=True),
    Operation("as_strided", "{0}.as_strided({1}, {2}, {3})", view=True),
    Operation("view_dtype", "{0}.view({1})", view=True),
    Operation("split", "{0}.split({1}, {2})[{3}]", view=True),
    Operation("chunk", "{0}.chunk(2, {1})[0]", view=True),
    Operation("detach", "{0}.detach()", view=True),
    Operation("alias", "{0}", view=True),
    # Writing
    *[
        Operation(f"{n}_", f"{{0}}.{n}_({{1}})", writes=0)
        for n in words(
            """
    add sub mul div copy fmod remainder eq lt gt pow clamp_min clamp_max logical_and floor_divide
    atan2
    """
        )
    ],
    *[
        Operation(f"{n}_", f"{{0}}.{n}_()", writes=0, exact=n in EXACT or n == "zero")
        for n in words(
            """
        tanh sigmoid sin abs neg relu zero floor round logical_not exp nan_to_num
        """
        )
    ],
    Operation("fill_", "{0}.fill_({1})", writes=0, exact=True),
    Operation("add_alpha_", "{0}.add_({1}, alpha={2})", writes=0),
    Operation("augmented", "{0} += {1}", writes=0),
    Operation("addcmul_", "{0}.addcmul_({1}, {2}, value={3})", writes=0),
    Operation("lerp_", "{0}.lerp_({1}, {2})", writes=0),
    Operation("masked_fill_", "{0}.masked_fill_({1}, {2})", writes=0, exact=True),
    Operation("set_first", "{0}[{1}:{2}:{3}] = {4}", writes=0, exact=True),
    Operation("set_last", "{0}[..., {1}:{2}:{3}] = {4}", writes=0, exact=True),
    Operation("add_last", "{0}[..., {1}:{2}:{3}] += {4}", writes=0),
    Operation("mul_t", "{0}.mT.mul_({1})", writes=0),
    Operation("copy_diagonal", "{0}.diagonal().copy_({1})", writes=0, exact=True),
    Operation("set_mask", "{0}[{1}] = {2}", writes=0, exact=True),
    Operation("index_put_", "{0}[places({1}, {0}.shape[0], {2}, {0})] = {3}", writes=0, exact=True),
    Operation(
        "index_put_add_",
        "{0}.index_put_((places({1}, {0}.shape[0], {2}, {0}),), {3}, accumulate=True)",
        writes=0,
    ),
    Operation(
        "index_add_",
        "{0}.index_add_({1}, places({2}, {0}.shape[{1}], ({0}.shape[{1}],), {0}), {3}, alpha={4})",
        writes=0,
    ),
    Operation(
        "index_fill_",
        "{0}.index_fill_({1}, places({2}, {0}.shape[{1}], (2,), {0}), {3})",
        writes=0,
        exact=True,
    ),
    Operation(
        "index_copy_",
        "{0}.index_copy_({1}, places({2}, {0}.shape[{1}], ({0}.shape[{1}],), {0}), {3})",
        writes=0,
        exact=True,
    ),
    Operation(
        "scatter_",
        "{0}.scatter_({1}, places({2}, {0}.shape[{1}], {0}.shape, {0}), {3})",
        writes=0,
        exact=True,
    ),
    Operation("cumsum_", "{0}.cumsum_({1})", writes=0),
    Operation("tril_", "{0}.tril_()", writes=0, exact=True),
    Operation("transpose_", "{0}.transpose_({1}, {2})", exact=True, writes=0),
    Operation("unsqueeze_", "{0}.unsqueeze_({1})", exact=True, writes=0),
    Operation("resize_", "{0}.resize_({1})", exact=True, writes=0),
    Operation("resize_fill", "{0}.resize_({1}).fill_({2})", exact=True, writes=0),
    Operation("set_", "{0}.set_({1})", exact=True, writes=0),
    Operation("set_data", "{0}.data = {1}", exact=True, writes=0),
    Operation("swap", "{0}, {1} = {1}, {0}", exact=True),
    # Results that are given
    *[
        Operation(f"{n}_out", f"torch.{n}({{1}}, {{2}}, out={{0}})", writes=0)
        for n in ["add", "mul", "sub", "maximum", "div", "lt", "matmul"]
    ],
    *[
        Operation(f"{n}_out", f"torch.{n}({{1}}, out={{0}})", writes=0)
        for n in ["tanh", "sigmoid", "exp", "neg", "isnan", "abs"]
    ],
    *[
        Operation(f"{n}_out", f"torch.{n}({{1}}, {{2}}, out={{0}})", writes=0)
        for n in ["sum", "amax", "cumsum", "softmax", "mean"]
    ],
    Operation("cat_out", "torch.cat([{1}, {1}], {2}, out={0})", writes=0, exact=True),
    Operation("where_out", "torch.where({1}, {2}, {3}, out={0})", writes=0, exact=True),
    Operation("addmm_out", "torch.addmm({1}, {2}, {3}, out={0})", writes=0),
    # Lists of tensors
    Operation("foreach_add", "torch._foreach_add([{0}, {1}], [{1}, {0}])[{2}]"),
    Operation("foreach_mul", "torch._foreach_mul([{0}, {1}], {2})[{3}]"),
    Operation("foreach_sqrt", "torch._foreach_sqrt([{0}, {1}])[{2}]"),
    Operation("foreach_norm", "torch._foreach_norm([{0}, {1}])[{2}]"),
    Operation("foreach_add_", "torch._foreach_add_([{0}], [{1}], alpha={2})", writes=0),
    Operation("foreach_mul_", "torch._foreach_mul_([{0}], {1})", writes=0),
    Operation("foreach_addcdiv_", "torch._foreach_addcdiv_([{0}], [{1}], [{2}], {3})", writes=0),
    Operation("foreach_lerp_", "torch._foreach_lerp_([{0}], [{1}], {2})", writes=0),
    Operation("foreach_zero_", "torch._foreach_zero_([{0}])", writes=0, exact=True),
    # Devices
    Operation("move", "{0}.to({1}, copy=True)", exact=True),
    Operation("copy_across", "{0}.copy_({1})", writes=0, exact=True),
    # Reading
    Operation("item", "tame({0}.sum().item())", asks=True),
    Operation("item_float", "tame(float({0}.reshape(-1)[0]))", exact=True, asks=True),
    Operation("read", "{0}", reads=True),
    Operation("repr", "repr({0})", exact=True, asks=True),
    Operation("any", "bool({0}.any())", exact=True, asks=True),
    # Off the CPU `tolist` is a copy, which asks for the history of a view: it may have none that
    # autograd can tell.
    Operation("tolist", "{0}.detach().tolist()", exact=True, asks=True),
    Operation("del", "del {0}", exact=True),
    Operation("commit", "commit()", exact=True, waits=True),
    # Gradients
    Operation("leaf", "{0}.detach().clone().requires_grad_()", exact=True),
    Operation("backward", "{0}.sum().backward()"),
    Operation("backward_mean", "({0} * {0}).mean().backward()"),
    Operation("grad", "torch.autograd.grad({0}.sum(), [{1}], retain_graph=True)[0]"),
    Operation("grad_of", "{0}.grad", view=True),
    Operation("clear_grad", "{0}.grad = None", exact=True),
    Operation("mse_loss", "F.mse_loss({0}, {1})"),
    Operation("cross_entropy", "F.cross_entropy({0}, places({1}, {0}.shape[1], {2}, {0}))"),
    Operation("sgd", "torch.optim.SGD([{0}], lr={1}, momentum={2}).step()", writes=0),
    Operation("adamw", "torch.optim.AdamW([{0}], lr={1}).step()", writes=0),
    # Errors by what operands hold
    _late("gather_beyond", "torch.gather({0}, {1}, beyond({2}, {0}.shape[{1}], {3}, {0}))"),
    _late("select_beyond", "{0}.index_select({1}, beyond({2}, {0}.shape[{1}], {3}, {0}))"),
    _late("index_beyond", "{0}[beyond({1}, {0}.shape[0], {2}, {0})]"),
    _late("index_last_beyond", "{0}[..., beyond({1}, {0}.shape[-1], {2}, {0})]"),
    _late("embedding_beyond", "F.embedding(beyond({1}, {0}.shape[0], {2}, {0}), {0})"),
    _late("take_beyond", "torch.take({0}, beyond({1}, {0}.numel(), {2}, {0}))"),
    _late("scatter_beyond", "{0}.scatter({1}, beyond({2}, {0}.shape[{1}], {3}, {0}), {4})"),
    _late("cross_entropy_beyond", "F.cross_entropy({0}, beyond({1}, {0}.shape[1], {2}, {0}))"),
    *[
        _late(f"{n}_by_zero", f"torch.{n}({{0}}, torch.zeros_like({{0}}))")
        for n in ("floor_divide", "remainder", "fmod")
    ],
    *[
        _late(f"{n}_of_zeros", f"torch.linalg.{n}(torch.zeros_like({{0}}[:1, :1]))")
        for n in ("cholesky", "inv")
    ],
    _late("multinomial_of_zeros", "torch.multinomial(torch.zeros_like({0}[:1]), 1)"),
    _late("put_beyond_", "{0}[beyond({1}, {0}.shape[0], {2}, {0})] = {3}", writes=0),
    _late(
        "index_fill_beyond_",
        "{0}.index_fill_({1}, beyond({2}, {0}.shape[{1}], (2,), {0}), {3})",
        writes=0,
    ),
    _late(
        "scatter_beyond_",
        "{0}.scatter_({1}, beyond({2}, {0}.shape[{1}], {0}.shape, {0}), {3})",
        writes=0,
    ),
    *[
        _late(f"{n}_by_zero_", f"{{0}}.{n}_(torch.zeros_like({{0}}))", writes=0)
        for n in ("floor_divide", "remainder")
    ],
    _late(
        "gather_beyond_out",
        "torch.gather({1}, {2}, beyond({3}, {1}.shape[{2}], {1}.shape, {1}), out={0})",
        writes=0,
    ),
    # The same memory under another storage
    Operation("dlpack", "torch.from_dlpack({0})", view=True),
    Operation("dlpack_slice", "torch.from_dlpack({0}[{1}:{2}:{3}])", view=True),
    Operation("dlpack_of_view", "torch.from_dlpack({0}.mT)", view=True),
    # Streams and events
    Operation("stream_waits", "stream(D0, {0}).wait_stream(stream(D0, {1}))", waits=True),
    Operation("record_event", "event(D0, {1}).record(stream(D0, {0}))", waits=True),
    Operation("wait_event", "stream(D0, {0}).wait_event(event(D0, {1}))", waits=True),
    Operation("synchronize_event", "event(D0, {0}).synchronize()", waits=True),
    Operation("query_event", "event(D0, {0}).query()", waits=True),
    Operation("synchronize_stream", "stream(D0, {0}).synchronize()", waits=True),
    Operation("synchronize", "synchronize({0})", waits=True),
    # Ctrl-C
    Operation("interrupted_read", "interrupted({0}.detach().tolist)", exact=True, asks=True),
    Operation("interrupted_copy", "interrupted({0}.cpu)", exact=True, asks=True),
    Operation("interrupted_call", "interrupted({0}.square)", exact=True),
    Operation("interrupted_commit", "interrupted(commit)", exact=True, waits=True),
    # A process of its own, and the memory that there is
    Operation("fork", "forked({0})", reads=True),
    Operation("limit", "limit(D0, {0})", waits=True),
    Operation("unlimit", "unlimit(D0)"),
]

# What fails late is recorded once a call like it was seen that did not fail.
_LIST += [
    Operation(f"{o.name}_not", found, exact=True, writes=o.writes)
    for o in _LIST
    if o.late and (found := _harmless(o.source)) != o.source
]

OPERATIONS: dict[str, Operation] = {o.name: o for o in _LIST}
