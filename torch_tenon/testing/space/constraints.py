"""What a call has to satisfy beside its schema, by the op's name: sizes that fit, indices in range.

An entry draws those arguments; all others are drawn by their type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from torch_tenon.testing.space import domains
from torch_tenon.testing.space.drawing import Drawing, Shape, Size

Rule = Callable[[Drawing], None]
RULES: dict[str, Rule] = {}
# The least and the most dimensions of the first tensor.
RANKS: dict[str, tuple[int, int]] = {}
# What their kernels do not check: other sizes are read beyond, a number that is no degree converted
# as C++ leaves it.
UNCHECKED = {"_weight_norm_interface"}


# Functions that kernels approximate, by how their names begin.
APPROXIMATE = ("special_", "polygamma", "lgamma", "mvlgamma", "digamma", "i0", "igamma", "erfinv")


# Ops whose first result alone means something in every mode.
FIRST_ALONE = {"_embedding_bag", "_embedding_bag_forward_only"}


def rule(names: str, low: int = 0, high: int = 4) -> Callable[[Rule], Rule]:
    """Enters a function for each of some names."""

    def enter(function: Rule) -> Rule:
        for name in names.split():
            RULES[name] = function
            RANKS[name] = (low, high)
        return function

    return enter


def at(d: Drawing, dim: int) -> Size:
    """The size of a dimension of the first tensor; 1 where it has none."""
    return d.shape[dim % len(d.shape)] if d.shape else Size.of(1)


def replaced(shape: Shape, dim: int, n: Size) -> Shape:
    """A shape with another size in one dimension."""
    found = list(shape)
    if found:
        found[dim % len(found)] = n
    return found


def names_of(d: Drawing) -> set[str]:
    """The names of the op's arguments."""
    return {a.name for a in d.schema.arguments}


# Indices


@rule("index_select index_add index_copy index_fill index_reduce")
def _index_rows(d: Drawing) -> None:
    dim = d.given["dim"] = d.dim()
    d.given["self"] = d.tensor(d.shape)
    n = at(d, dim)
    unique = d.name == "index_copy"
    count = Size.of(d.whole(0, n[0])) if unique else d.size(8)
    if unique and count[0] > 1:
        count = Size((count[0],) * 3)
    d.given["index"] = d.index([count] if d.shape or d.chance(2) else [], n[0], unique=unique)
    if "source" in names_of(d):
        d.given["source"] = d.tensor(replaced(d.shape, dim, count))
    if "reduce" in names_of(d):
        d.given["reduce"] = d.one(("prod", "mean", "amax", "amin"))


@rule("gather scatter scatter_add scatter_reduce")
def _scatter(d: Drawing) -> None:
    dim = d.given["dim"] = d.dim()
    d.given["self"] = d.tensor(d.shape)
    n = at(d, dim)
    shape = [x if d.chance(2) else Size.of(min(x[0], 1)) for x in d.shape]
    plain = d.name == "scatter" and "reduce" not in names_of(d)
    count = d.whole(0, n[0] if plain else 8)
    shape = replaced(shape, dim, Size((count,) * 3))
    if plain:
        # Each place is written once.
        others = [k for k in range(len(shape)) if k != dim % max(1, len(shape))]
        values = d.draw(st.permutations(range(min(n[0], 8)))) if n[0] else [0]
        values += list(range(len(values), n[0]))
        d.given["index"] = d.tensor(shape, "int64", values, times=1, expanded=others)
    else:
        d.given["index"] = d.index(shape, n[0])
    if "src" in names_of(d):
        d.given["src"] = d.tensor(shape if d.chance(2) else d.shape if plain else shape)
    if "reduce" in names_of(d):
        of_two = d.name == "scatter"
        d.given["reduce"] = d.one(
            ("add", "multiply") if of_two else ("sum", "prod", "mean", "amax", "amin")
        )


@rule("index _unsafe_index index_put _index_put_impl _unsafe_index_put", 1, 4)
def _index(d: Drawing) -> None:
    d.given["self"] = d.tensor(d.shape)
    put = d.name not in ("index", "_unsafe_index")
    unique = put and not d.given.setdefault("accumulate", d.chance(2))
    first = d.whole(0, len(d.shape) - 1)
    count = 1 if unique else d.whole(1, len(d.shape) - first)
    shape = d.some_shape(0, 2, 16)
    if unique:
        shape = [Size((d.whole(0, d.shape[first][0]),) * 3)]
    if not unique and d.chance(6):
        mask = d.tensor(d.shape[first : first + 1], "bool")
        d.given["indices"] = [None] * first + [mask]
        result: Shape = []
    else:
        found = [
            d.index(shape, d.shape[k][0], unique=unique, negative=not unique)
            for k in range(first, first + count)
        ]
        none: Any = [None] * first
        d.given["indices"] = none + found
        result = [*d.shape[:first], *shape, *d.shape[first + count :]]
    if put:
        kept = result[d.whole(0, len(result)) :] if d.chance(2) else result
        d.given["values"] = d.tensor(kept)


@rule("_unsafe_masked_index _unsafe_masked_index_put_accumulate", 1, 4)
def _masked_index(d: Drawing) -> None:
    """Indices beyond the tensor as well, wherever the mask is."""
    d.given["self"] = d.tensor(d.shape)
    first = d.whole(0, len(d.shape) - 1)
    count = d.whole(1, len(d.shape) - first)
    shape = d.some_shape(0, 2, 16)
    none: Any = [None] * first
    d.given["indices"] = none + [d.tensor(shape, "int64") for _ in range(count)]
    result = [*d.shape[:first], *shape, *d.shape[first + count :]]
    d.given["mask"] = d.tensor(result, "bool")
    if "values" in names_of(d):
        d.given["values"] = d.tensor(result)


@rule("take put")
def _take(d: Drawing) -> None:
    d.given["self"] = d.tensor(d.shape)
    total = 1
    for n in d.shape:
        total *= n[0]
    unique = d.name == "put" and not d.given.setdefault("accumulate", d.chance(2))
    shape = [Size((d.whole(0, total),) * 3)] if unique else d.some_shape(0, 2, 16)
    d.given["index"] = d.index(shape, total, unique=unique, negative=not unique)
    d.given["source"] = d.tensor(shape)


@rule("embedding", 2, 2)
def _embedding(d: Drawing) -> None:
    d.given["weight"] = d.tensor(d.shape)
    d.given["indices"] = d.index(d.some_shape(0, 3, 32), d.shape[0][0])
    d.given["padding_idx"] = d.whole(-1, d.shape[0][0] - 1)


@rule("embedding_dense_backward", 1, 3)
def _embedding_backward(d: Drawing) -> None:
    """The CPU's kernel writes wherever an index says."""
    shape = d.shape[:-1]
    rows = d.given["num_weights"] = d.whole(1, 9)
    d.given["grad_output"] = d.tensor(d.shape)
    d.given["indices"] = d.index(shape, rows)
    d.given["padding_idx"] = d.whole(-1, rows - 1)


@rule("masked_scatter")
def _masked_scatter(d: Drawing) -> None:
    d.given["self"] = d.tensor(d.shape)
    d.given["mask"] = d.like(dtype="bool")
    d.given["source"] = d.tensor(d.shape)


@rule("searchsorted bucketize")
def _search(d: Drawing) -> None:
    some = d.draw(st.lists(st.sampled_from((0, 1, 2, 3, 5, 7, 100)), min_size=0, max_size=8))
    values = sorted(some) or [0]
    name = "sorted_sequence" if d.name == "searchsorted" else "boundaries"
    if d.dtype == "bool" or d.dtype.startswith("complex"):
        d.dtype = "float32"
    d.given[name] = d.in_order(values, Size((len(some),) * 3), d.dtype)
    if d.right:
        for text in ("sorter", "side"):
            d.given[text] = None


# Views


@rule("view reshape _unsafe_view view_copy")
def _view(d: Drawing) -> None:
    d.given["self"] = d.tensor(d.shape)
    if "size" not in names_of(d) and "shape" not in names_of(d):
        return
    sizes = list(d.shape)
    for _ in range(d.whole(0, 2)):
        if len(sizes) > 1 and d.chance(2):
            k = d.whole(0, len(sizes) - 2)
            sizes[k : k + 2] = [sizes[k].with_(lambda a, b: a * b, sizes[k + 1])]
        else:
            sizes.insert(d.whole(0, len(sizes)), Size.of(1))
    shown = [n.json() for n in sizes]
    if shown and d.chance(3):
        shown[d.whole(0, len(shown) - 1)] = -1
    d.given["size" if "size" in names_of(d) else "shape"] = shown


@rule("expand expand_copy")
def _expand(d: Drawing) -> None:
    d.shape = [Size.of(1) if d.chance(2) else n for n in d.shape]
    d.given["self"] = d.tensor(d.shape)
    sizes = [d.size(8) if n[0] == 1 and d.chance(2) else n for n in d.shape]
    sizes = [d.size(4) for _ in range(d.whole(0, 2))] + sizes
    d.given["size"] = [-1 if n in d.shape and d.chance(5) else n.json() for n in sizes]


@rule("permute permute_copy")
def _permute(d: Drawing) -> None:
    dims = d.draw(st.permutations(range(len(d.shape))))
    d.given["dims"] = [x - len(d.shape) if d.chance(4) else x for x in dims]


@rule("select select_copy select_scatter slice slice_copy slice_scatter narrow_copy", 1, 4)
def _part(d: Drawing) -> None:
    dim = d.given["dim"] = d.dim()
    d.given["self"] = d.tensor(d.shape)
    n = at(d, dim)
    named = names_of(d)
    if "index" in named:
        d.given["index"] = d.whole(-n[0], n[0] - 1)
        if "src" in named:
            d.given["src"] = d.tensor([x for k, x in enumerate(d.shape) if k != dim % len(d.shape)])
    elif "length" in named:
        d.given["start"] = d.whole(0, n[0])
        d.given["length"] = d.whole(0, n[0] - d.given["start"])
    else:
        ends = (None, 0, 1, 2, -1, n.json(), 2**63 - 1, -(2**63), 100)
        start, end = (d.one(ends) for _ in range(2))
        step = d.given["step"] = d.one((1, 2, 3, 2**62))
        d.given["start"], d.given["end"] = start, end
        if "src" in named:
            ends_at = [e["sizes"] if isinstance(e, dict) else [e] * 3 for e in (start, end)]
            count = [
                len(range(*slice(a, b, step).indices(k)))
                for k, a, b in zip(n, *ends_at, strict=True)
            ]
            d.given["src"] = d.tensor(replaced(d.shape, dim, Size(count)))


@rule("as_strided as_strided_copy as_strided_scatter _reshape_alias")
def _as_strided(d: Drawing) -> None:
    # `_reshape_alias` does not look whether there is so much memory.
    d.given["self"] = d.tensor(d.shape, behind=4096 if d.name == "_reshape_alias" else 64)
    shape = d.some_shape(0, 3, 16)
    d.given["size"] = [n[0] for n in shape]
    d.given["stride"] = [d.one((1, 2, 0, 3)) for _ in shape]
    d.given["storage_offset"] = d.one((None, 0, 1, 5))
    d.given["src"] = d.tensor([Size((n[0],) * 3) for n in shape])


@rule("split split_with_sizes split_with_sizes_copy unsafe_split unsafe_split_with_sizes", 1, 4)
def _split(d: Drawing) -> None:
    dim = d.given["dim"] = d.dim()
    n = at(d, dim)
    d.given["split_size"] = d.whole(1, max(1, n[0]))
    if "split_sizes" in names_of(d):
        first = d.whole(0, n[0])
        rest = n.with_(lambda a: a - first).json()
        d.given["split_sizes"] = [first, rest]


@rule("unfold unfold_copy", 1, 4)
def _unfold(d: Drawing) -> None:
    dim = d.given["dimension"] = d.dim()
    d.given["size"] = d.whole(0, at(d, dim)[0])
    d.given["step"] = d.whole(1, 3)


@rule("diagonal diagonal_copy diag_embed diagonal_scatter diagonal_backward", 2, 4)
def _diagonal(d: Drawing) -> None:
    first, second = d.given["dim1"], d.given["dim2"] = d.one(((0, 1), (1, 0), (-2, -1), (0, -1)))
    offset = d.given["offset"] = d.one((0, 1, -1, 2, -3, 100, -(2**62)))
    if d.name not in ("diagonal_scatter", "diagonal_backward"):
        return
    rank = len(d.shape)
    n, m = d.shape[first], d.shape[second]
    length = n.with_(lambda a, b: max(0, min(a + min(offset, 0), b - max(offset, 0))), m)
    rest = [x for k, x in enumerate(d.shape) if k not in (first % rank, second % rank)]
    if d.name == "diagonal_scatter":
        d.given["self"] = d.tensor(d.shape)
        d.given["src"] = d.tensor([*rest, length])
    else:
        d.given["grad_output"] = d.tensor([*rest, length])
        d.given["input_sizes"] = [x.json() for x in d.shape]


@rule("select_backward slice_backward", 1, 4)
def _part_backward(d: Drawing) -> None:
    dim = d.given["dim"] = d.dim()
    n = at(d, dim)
    d.given["input_sizes"] = [x.json() for x in d.shape]
    if d.name == "select_backward":
        d.given["index"] = d.whole(-n[0], n[0] - 1)
        rest = [x for k, x in enumerate(d.shape) if k != dim % len(d.shape)]
        d.given["grad_output"] = d.tensor(rest)
        return
    start, end = (d.one((0, 1, 2, -1, 2**63 - 1, 100)) for _ in range(2))
    step = d.given["step"] = d.one((1, 2, 3))
    d.given |= {"start": start, "end": end}
    count = n.with_(lambda k: len(range(*slice(start, end, step).indices(k))))
    d.given["grad_output"] = d.tensor(replaced(d.shape, dim, count))


@rule("view_as_complex", 1, 4)
def _as_complex(d: Drawing) -> None:
    d.shape = [*d.shape[:-1], Size((2, 2, 2))]


@rule("repeat")
def _repeat(d: Drawing) -> None:
    d.given["repeats"] = [d.one((1, 2, 0, 3)) for _ in range(len(d.shape) + d.whole(0, 1))]


@rule("roll")
def _roll(d: Drawing) -> None:
    dims = d.draw(st.lists(st.integers(0, max(0, len(d.shape) - 1)), max_size=3))
    d.given["dims"] = dims
    d.given["shifts"] = [d.one((1, 0, -1, 3, 100, -(2**40))) for _ in dims or [0]]


@rule("rot90", 2, 4)
def _rot90(d: Drawing) -> None:
    d.given["dims"] = list(d.one(((0, 1), (1, 0), (-1, 0))))
    d.given["k"] = d.one((1, 0, -1, 2, 7, 2**40))


# Several tensors


@rule("cat _chunk_cat", 1, 4)
def _cat(d: Drawing) -> None:
    dim = d.given["dim"] = d.dim()
    shapes = [replaced(d.shape, dim, d.size(8)) for _ in range(d.whole(1, 3))]
    d.given["tensors"] = [
        d.tensor(s, None if not d.chance(5) else d.one(domains.DTYPES)) for s in shapes
    ]


@rule("stack")
def _stack(d: Drawing) -> None:
    d.given["dim"] = d.dim(len(d.shape) + 1)
    d.given["tensors"] = [d.tensor(d.shape) for _ in range(d.whole(1, 3))]


@rule("mm addmm mv addmv dot vdot addr bmm baddbmm addbmm", 2, 2)
def _product(d: Drawing) -> None:
    a, b, c, batch = (d.size(17) for _ in range(4))
    shapes = {
        "mm": ([a, b], [b, c], [a, c]),
        "addmm": ([a, b], [b, c], [a, c]),
        "mv": ([a, b], [b], [a]),
        "addmv": ([a, b], [b], [a]),
        "dot": ([a], [a], []),
        "vdot": ([a], [a], []),
        "addr": ([a], [b], [a, b]),
    }
    one, two, total = shapes.get(d.name, ([batch, a, b], [batch, b, c], [batch, a, c]))
    if d.name == "addbmm":
        total = [a, c]
    added = d.name.startswith("add") or d.name == "baddbmm"
    tensors = [x.name for x in d.schema.arguments if str(x.type) == "Tensor"]
    tensors = [x for x in tensors if x != "out"]
    if added:
        d.shape = list(total)
        d.given[tensors.pop(0)] = d.tensor(total) if d.op.endswith("_.default") else d.like(total)
    # Where products leave the range, a library's order of sums makes infinity or NaN.
    d.given[tensors[0]] = d.tensor(one, None, d.some(domains.is_moderate))
    d.given[tensors[1]] = d.tensor(two, None, d.some(domains.is_moderate))
    d.shape = list(total)


@rule("complex polar")
def _two_of_one(d: Drawing) -> None:
    first, second = (a.name for a in d.schema.arguments[:2])
    d.given[first] = d.tensor(d.shape)
    d.given[second] = d.tensor(d.shape)


# Reductions, searches


@rule("topk kthvalue", 1, 4)
def _topk(d: Drawing) -> None:
    dim = d.given["dim"] = d.dim()
    n = at(d, dim)
    d.given["k"] = d.whole(0 if d.name == "topk" else 1, n[0])


@rule("median nanmedian")
def _middle(d: Drawing) -> None:
    """Along an expanded dimension the CPU reads beside the memory that it is given."""
    d.given["self"] = d.tensor(d.shape)
    d.tensors[-1].pop("expanded", None)


UNCHECKED.update(("median", "nanmedian"))


@rule("var std var_mean std_mean")
def _spread(d: Drawing) -> None:
    d.given["correction"] = d.one((None, 1, 0, 2, 1.5, -1, 0.5, 100, -2.5, domains.inf, True))


@rule("_softmax_backward_data _log_softmax_backward_data")
def _softmax_backward(d: Drawing) -> None:
    """The CPU reads beyond the end of a result that is smaller than its gradient."""
    d.given["dim"] = d.dim()
    d.given["grad_output"] = d.tensor(d.shape)
    d.given["output"] = d.tensor(d.shape)
    d.given["input_dtype"] = {"torch": d.dtype}


UNCHECKED.update(("_softmax_backward_data", "_log_softmax_backward_data"))


@rule("_cdist_forward", 2, 4)
def _rows(d: Drawing) -> None:
    d.given["x1"] = d.tensor(d.shape)
    d.given["x2"] = d.tensor([*d.shape[:-2], d.size(16), d.shape[-1]])
    d.given["p"] = d.one((2.0, 0.0, 1.0, 0.5, 3.0, domains.inf))
    d.given["compute_mode"] = d.one((None, 0, 1, 2))


@rule("_euclidean_dist", 2, 2)
def _distances_of_fractions(d: Drawing) -> None:
    """`cdist`, which alone calls it, takes no whole numbers."""
    d.dtype = d.one(domains.FLOATS)
    d.given["x1"] = d.tensor(d.shape)
    d.given["x2"] = d.tensor([d.size(16), d.shape[1]])


@rule("_neg_view")
def _negative(d: Drawing) -> None:
    """Where no kernel negates, the CPU raises for whoever reads it, a copy to the host included."""
    if d.dtype in ("bool", "uint16", "uint32", "uint64"):
        d.dtype = "int32"


@rule("_cholesky_solve_helper", 2, 4)
def _solve(d: Drawing) -> None:
    """`cholesky_solve`, which alone calls it, looks at the sizes; the helper reads beyond."""
    d.dtype = d.one(("float32", "float64", "complex64", "complex128"))
    n = d.shape[-2]
    d.given["self"] = d.tensor(d.shape)
    d.given["A"] = d.tensor([*d.shape[:-2], n, n])
    if "out" in names_of(d):
        d.given["out"] = d.tensor(d.shape)


UNCHECKED.add("_cholesky_solve_helper")


@rule("renorm", 2, 4)
def _renorm(d: Drawing) -> None:
    d.given["dim"] = d.dim()
    d.given["p"] = d.one((2, 1, 0.5, 3.0, domains.inf))
    d.given["maxnorm"] = d.one((1, 0, 0.5, 5.0, domains.inf))


@rule("multinomial", 1, 2)
def _draws(d: Drawing) -> None:
    d.given["self"] = d.tensor(d.shape, None, (0.5, 1.0, 2.0, 0.25))
    d.given["num_samples"] = d.whole(1, max(1, d.shape[-1][0]))


@rule("_int_mm", 2, 2)
def _bytes(d: Drawing) -> None:
    a, b, c = (d.size(33) for _ in range(3))
    d.dtype = "int8"
    d.given["self"], d.given["mat2"] = d.tensor([a, b]), d.tensor([b, c])
    d.dtype = "int32"  # of the result


@rule("_pdist_forward", 2, 2)
def _distances(d: Drawing) -> None:
    """`pdist`, which alone calls it, refuses other ranks and powers."""
    d.given["self"] = d.tensor(d.shape)
    d.given["p"] = d.one((2.0, 0.0, 1.0, 0.5, 3.0, domains.inf))


@rule("_pdist_backward _cdist_backward", 2, 2)
def _distances_backward(d: Drawing) -> None:
    """The CPU reads as many distances and gradients as there are pairs of rows."""
    n = d.shape[0]
    if d.name == "_pdist_backward":
        pairs = [Size(tuple(k * (k - 1) // 2 for k in n))]
        d.given["self"] = d.tensor(d.shape)
    else:
        d.given["x1"] = d.tensor(d.shape)
        other = d.size(16)
        d.given["x2"] = d.tensor([other, d.shape[1]])
        pairs = [n, other]
    d.given["grad"] = d.tensor(pairs)
    d.given[d.name[1:6]] = d.tensor(pairs)


_POLYNOMIALS = " ".join(
    f"special_{name}"
    for name in (
        *(f"{s}chebyshev_polynomial_{k}" for s in ("", "shifted_") for k in "tuvw"),
        *("hermite_polynomial_h", "hermite_polynomial_he"),
        *("laguerre_polynomial_l", "legendre_polynomial_p"),
    )
)


UNCHECKED.update(_POLYNOMIALS.split())


@rule(_POLYNOMIALS)
def _polynomial(d: Drawing) -> None:
    """A degree is as many steps, and billions of them are minutes. Of NaN some of the CPU's loops
    give what their memory held."""
    kinds = {a.name: str(a.type) for a in d.schema.arguments}
    if kinds["n"] == "number":
        d.given["n"] = d.one((0, 1, 2, 3, 5, -1, 7.5, 64, 100, True, domains.inf, -domains.inf))
    if kinds["x"] == "Tensor":
        d.given["x"] = d.tensor(d.shape, None, d.some(domains.is_number))
    else:
        d.given["x"] = d.one((0, 1, 2.5, -0.0, -1, 0.125, True, 1e30, domains.inf, -domains.inf))
    if kinds["n"] == "number":
        return
    d.given["n"] = d.tensor(d.shape, None, (0, 1) if d.dtype == "bool" else (0, 1, 2, 3, 5, 64))


@rule("special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1")
def _bessel(d: Drawing) -> None:
    """Of large numbers the CPU's have no right digit, see conformance.md."""
    d.given["self"] = d.tensor(d.shape, None, d.some(domains.is_moderate))


@rule("masked_scatter_backward", 0, 4)
def _masked_gradient(d: Drawing) -> None:
    """The source, of which this is the gradient, has a number for each place at least."""
    d.given["grad_output"] = d.tensor(d.shape)
    d.given["mask"] = d.tensor(d.shape, "bool")
    d.given["sizes"] = [n.json() for n in d.shape]


@rule("polygamma")
def _polygamma(d: Drawing) -> None:
    """PyTorch cuts a degree to 32 bits."""
    d.given["n"] = d.one((1, 0, 2, 3, 5, 64, 100, *(() if d.right else (-1, -100))))
    d.given["self"] = d.tensor(d.shape)


@rule("trace tril triu", 2, 4)
def _matrix(d: Drawing) -> None:
    if d.name == "trace":
        d.shape = d.shape[:2]
    d.given["diagonal"] = d.one((0, 1, -1, 3, -100, 2**62, -(2**63), 2**31))


@rule("linalg_cross", 1, 4)
def _cross(d: Drawing) -> None:
    dim = d.given["dim"] = d.dim()
    d.shape = replaced(d.shape, dim, Size((3, 3, 3)))


@rule("_trilinear", 1, 4)
def _trilinear(d: Drawing) -> None:
    """Each tensor lacks some of the dimensions; the CPU's kernel does not look whether the others
    fit."""
    for k in ("1", "2", "3"):
        lacks = d.given["expand" + k] = [i for i in range(len(d.shape)) if d.chance(3)]
        d.given["i" + k] = d.tensor([n for i, n in enumerate(d.shape) if i not in lacks])
    d.given["sumdim"] = [i for i in range(len(d.shape)) if d.chance(3)]
    d.given["unroll_dim"] = d.whole(0, len(d.shape) - 1)
