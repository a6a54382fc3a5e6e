"""What Fourier transforms and linear algebra have to satisfy, as `constraints.py`."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from torch_tenon.testing.space import domains
from torch_tenon.testing.space.constraints import UNCHECKED, names_of, rule
from torch_tenon.testing.space.drawing import Drawing, Shape, Size

# Fourier transforms


@rule("_fft_c2c _fft_r2c _fft_c2r", 1, 4)
def _fourier(d: Drawing) -> None:
    """Dimensions from the first on, each once: `torch.fft` makes them so. Of a real result the
    CPU's kernel reads half of the last dimension's size, and does not look how long that is."""
    real = d.one(("float32", "float64"))
    d.dtype = real if d.name == "_fft_r2c" else domains.COMPLEX_OF[real]
    if not d.right and d.chance(4):
        d.dtype = d.one(domains.DTYPES)
    d.shape = [n if n[0] or d.chance(4) else Size.of(1) for n in d.shape]
    order = d.draw(st.permutations(range(len(d.shape))))
    dims = d.given["dim"] = list(order[: d.whole(1, min(3, len(order)))])
    d.given["self"] = d.tensor(d.shape, None, d.some(_is_small) if d.chance(2) else None)
    d.given["normalization"] = d.whole(0, 2)
    if d.name == "_fft_c2r":
        odd = d.whole(0, 1)
        d.given["last_dim_size"] = d.shape[dims[-1]].with_(lambda n: max(0, 2 * n - 2 + odd)).json()
    if "out" in names_of(d):
        to = real if d.name == "_fft_c2r" else domains.COMPLEX_OF[real]
        d.given["out"] = d.tensor(d.one(([Size.of(0)], d.shape)), to, expanded=[])


def _is_small(x: Any) -> bool:
    """Whether sums of an element and its multiples stay in range."""
    if isinstance(x, dict):
        return all(map(_is_small, x["complex"]))
    return not isinstance(x, float) or abs(x) < 1e18


UNCHECKED.update(("_fft_c2c", "_fft_r2c", "_fft_c2r"))


# Matrices

_FIELDS = ("float32", "float64", "complex64", "complex128")


def field(d: Drawing) -> None:
    """Has the numbers be those that LAPACK takes; now and then others."""
    if d.dtype not in _FIELDS and (d.right or not d.chance(6)):
        d.dtype = d.one(_FIELDS)


def matrix(d: Drawing, lead: Shape, n: Size, kind: str = "general") -> Any:
    """Square matrices whose numbers repeat after n + 1, so that each diagonal has one number: the
    first is largest. `kind`: "general", or "hermitian", which has the same on both sides. Of a
    batch all are the same."""
    if d.dtype not in _FIELDS:
        return d.tensor([*lead, n, n])
    some = [x for x in domains.ordinary_of(d.dtype) for _ in range(2)]
    values = [d.one(some) for _ in range(4)]
    palettes = [_diagonals(values, k, kind) for k in n]
    rank = len(lead)
    layout: dict[str, Any] = {"times": 1, "expanded": list(range(rank))}
    if kind == "general" and d.chance(3):
        layout["order"] = [*range(rank), rank + 1, rank]
    same = palettes[0] == palettes[1] == palettes[2]
    found = d.tensor([*lead, n, n], None, palettes[0], **layout)
    if not same:
        d.tensors[-1]["palette"] = {"sizes": palettes}
    return found


def _diagonals(values: list[Any], n: int, kind: str) -> list[Any]:
    """The number of each diagonal, from the main one on."""
    period = n + 1
    found = [values[k % len(values)] for k in range(period)]
    first = found[0]
    sign = first["complex"][0] if isinstance(first, dict) else first
    main = float(2 * period) * (1.0 if kind == "hermitian" or sign > 0 else -1.0)
    if kind == "hermitian":
        for k in range(1, period):
            other = period - k
            if other > k:
                found[other] = _conjugate(found[k])
            elif other == k and isinstance(found[k], dict):
                found[k] = {"complex": [found[k]["complex"][0], 0.0]}
    found[0] = {"complex": [main, 0.0]} if isinstance(first, dict) else main
    return found


def _conjugate(x: Any) -> Any:
    return {"complex": [x["complex"][0], -x["complex"][1]]} if isinstance(x, dict) else x


def _lead(d: Drawing) -> Shape:
    return [d.size(3) for _ in range(d.whole(0, 2))]


def _real_of(dtype: str) -> str:
    return {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)


def _outs(d: Drawing) -> None:
    """Results of the dtypes that they have, which `right` calls are given."""
    whole = {"pivots": "int32", "info": "int32", "rank": "int64"}
    real = ("eigenvalues", "S", "logabsdet", "residuals", "singular_values")
    to_complex = d.name in ("linalg_eig", "linalg_eigvals")
    for a in d.schema.arguments:
        if a.is_out and (d.right or not d.chance(4)):
            dtype = whole.get(a.name, _real_of(d.dtype) if a.name in real else d.dtype)
            dtype = domains.COMPLEX_OF.get(d.dtype, d.dtype) if to_complex else dtype
            d.given[a.name] = d.tensor([Size.of(0)], dtype, expanded=[])


@rule(
    "_linalg_det _linalg_slogdet linalg_inv_ex linalg_eig linalg_eigvals _linalg_eigvals "
    "linalg_matrix_exp linalg_lu linalg_lu_factor_ex",
    2,
    4,
)
def _square(d: Drawing) -> None:
    field(d)
    n, lead = d.size(8), _lead(d)
    d.given[d.schema.arguments[0].name] = matrix(d, lead, n)
    d.shape = [*lead, n, n]
    # The CPU has no factors without an exchange of rows.
    d.given |= {"check_errors": d.chance(3), "pivot": not d.chance(8)}
    _outs(d)


@rule(
    "cholesky linalg_cholesky_ex cholesky_inverse _linalg_eigh linalg_ldl_factor_ex",
    2,
    4,
)
def _hermitian(d: Drawing) -> None:
    field(d)
    n, lead = d.size(8), _lead(d)
    d.given[d.schema.arguments[0].name] = matrix(d, lead, n, "hermitian")
    d.shape = [*lead, n, n]
    d.given |= {"UPLO": d.one(("L", "U")), "upper": d.chance(2), "hermitian": d.chance(2)}
    _outs(d)


@rule("linalg_householder_product ormqr", 2, 4)
def _reflections(d: Drawing) -> None:
    """Columns that reflect, and how far each does."""
    field(d)
    n, lead = d.size(8), _lead(d)
    k = n.with_(lambda x: min(x, 2)) if d.chance(2) else n
    usual = domains.ordinary_of(d.dtype)
    first, second, *_ = (a.name for a in d.schema.arguments)
    d.shape = [*lead, n, k]
    d.given[first] = d.tensor(d.shape, None, usual)
    d.given[second] = d.tensor([*lead, k], None, usual)
    if d.name == "ormqr":
        left = d.given["left"] = d.chance(2)
        other = d.size(5)
        d.given["input3"] = d.tensor([*lead, n, other] if left else [*lead, other, n], None, usual)
    _outs(d)


@rule("lu_unpack", 2, 4)
def _unpacked(d: Drawing) -> None:
    field(d)
    n, m, lead = d.size(8), d.size(8), _lead(d)
    k = n.with_(min, m)
    d.shape = [*lead, n, m]
    d.given["LU_data"] = d.tensor(d.shape)
    plain: dict[str, Any] = {"times": 1, "expanded": []}
    d.given["LU_pivots"] = d.tensor([*lead, k], "int32", [d.whole(1, max(1, k[0]))], **plain)
    d.given |= {"unpack_data": d.chance(2), "unpack_pivots": d.chance(2)}
    _outs(d)


@rule("linalg_lstsq", 2, 4)
def _least_squares(d: Drawing) -> None:
    field(d)
    n, m, lead = d.size(8), d.size(5), _lead(d)
    d.given["self"] = matrix(d, lead, n)
    d.shape = [*lead, n, m]
    d.given["b"] = d.tensor(d.shape, None, domains.ordinary_of(d.dtype))
    d.given["rcond"] = d.one((None, 1e-5))
    d.given["driver"] = d.one((None, "gels", "gelsy", "gelsd", "gelss"))
    _outs(d)


@rule("linalg_qr geqrf _linalg_svd linalg_pinv", 2, 4)
def _any_matrix(d: Drawing) -> None:
    field(d)
    n = d.size(8)
    lead = _lead(d)
    if d.chance(2):
        d.given[d.schema.arguments[0].name] = matrix(d, lead, n)
        d.shape = [*lead, n, n]
    else:
        d.shape = [*lead, n, d.size(8)]
        usual = domains.ordinary_of(d.dtype)
        d.given[d.schema.arguments[0].name] = d.tensor(d.shape, None, usual)
    d.given |= {"mode": d.one(("reduced", "complete", "r")), "driver": None, "hermitian": False}
    for name in ("rcond", "atol", "rtol"):
        number = d.one((1e-5, 0.0, 1e-2))
        of_tensors = any(a.name == name and "Tensor" in str(a.type) for a in d.schema.arguments)
        real = _real_of(d.dtype)
        d.given[name] = d.tensor([], real, (number,)) if of_tensors else number
    _outs(d)


@rule("cholesky_solve _cholesky_solve_helper _linalg_solve_ex triangular_solve "
      "linalg_solve_triangular linalg_lu_solve linalg_ldl_solve", 2, 4)  # fmt: skip
def _solve(d: Drawing) -> None:
    """Of matrices that have an inverse, and whose factors are where a factorisation leaves them."""
    field(d)
    n, m, lead = d.size(8), d.size(5), _lead(d)
    left = d.given["left"] = d.chance(2) or "left" not in names_of(d)
    of_pivots = d.name in ("linalg_lu_solve", "linalg_ldl_solve")
    first, second = [a.name for a in d.schema.arguments if a.name != "pivots"][:2]
    # The older ones have the right side before the matrix.
    if d.name in ("cholesky_solve", "_cholesky_solve_helper", "triangular_solve"):
        first, second = second, first
    d.given[first] = matrix(d, lead, n, "hermitian" if of_pivots else "general")
    d.shape = [*lead, n, m] if left else [*lead, m, n]
    d.given[second] = d.tensor(d.shape, None, domains.ordinary_of(d.dtype))
    if of_pivots:
        most = max(n)
        steps = list(range(1, most + 1)) or [1]
        layout: dict[str, Any] = {"times": 1, "expanded": list(range(len(lead)))}
        d.given["pivots"] = d.tensor([*lead, n], "int32", steps, **layout)
    d.given["check_errors"] = d.chance(3)
    _outs(d)


UNCHECKED.update(("linalg_lu_solve", "linalg_ldl_solve", "_cholesky_solve_helper", "lu_unpack"))
