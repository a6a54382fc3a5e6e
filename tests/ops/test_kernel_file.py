"""Custom ops declared in YAML: what a file makes, and what is said of one that is wrong."""

import itertools
import textwrap
from pathlib import Path

import pytest
import torch
from fresh_process import output

import torch_tenon
from torch_tenon.ops.custom import CUSTOM_OPS
from torch_tenon.ops.kernel_file import KernelFileError
from torch_tenon.targets.target import CompileError

SCALE = """
#include <stdint.h>
void scale(float *out, const float *x, double factor, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor;
}
"""
GOOD = """
- func: SPACE::scale(Tensor x, float factor) -> Tensor
  result: like x
  kernels:
    - device: host
      source: scale.c
      entry: scale
      arguments: [float32 result, float32 x, float64 factor, int64 numel(x)]
  backward:
    x: SPACE::scale(grad, factor)
"""
_numbers = itertools.count()


@pytest.fixture
def load(tmp_path):
    """Writes a file and loads it; SPACE is a namespace of its own."""
    (tmp_path / "scale.c").write_text(SCALE)

    def load(text):
        space = f"kernel_file_{next(_numbers)}"
        path = tmp_path / "ops.yaml"
        path.write_text(textwrap.dedent(text).replace("SPACE", space))
        ops = torch_tenon.load_kernels(path)
        return {name.partition("::")[2]: op for name, op in ops.items()}

    return load


def test_values_and_gradient(load):
    scale = load(GOOD)["scale"]
    x = torch.ones(3, device="tenon", requires_grad=True)
    for _ in range(3):
        x.grad = None
        y = scale(x, 7.0)
        y.sum().backward()
        assert y.tolist() == [7] * 3 and x.grad.tolist() == [7] * 3


def test_source_in_the_file_sizes_and_several_results(load):
    ops = load("""
        - func: SPACE::edges(Tensor x, int n) -> (Tensor first, Tensor count)
          result:
            - {sizes: ["size(x, 0)", n], dtype: like x}
            - {sizes: [], dtype: int64}
          kernels:
            - device: host
              source: |
                #include <stdint.h>
                void edges(float *first, int64_t *count, const float *x, int64_t rows,
                           int64_t columns, int64_t n) {
                    for (int64_t r = 0; r < rows; ++r)
                        for (int64_t c = 0; c < n; ++c) first[r * n + c] = x[r * columns + c];
                    *count = rows * n;
                }
              entry: edges
              arguments:
                - float32 first
                - int64 count
                - float32 x
                - int64 size(x, 0)
                - int64 size(x, 1)
                - int64 n
    """)
    x = torch.arange(12.0).view(3, 4)
    for _ in range(3):
        first, count = ops["edges"](x.to("tenon"), 2)
        assert first.tolist() == x[:, :2].tolist() and count.item() == 6


def test_an_op_of_others_and_a_function_beside_the_file(load, tmp_path):
    (tmp_path / "beside_the_file.py").write_text(
        "import torch\ndef like(x):\n    return torch.empty_like(x)\n"
        "def twice(x):\n    return x + x\n"
    )
    ops = load("""
        - func: SPACE::hard(Tensor x, float width=1.0) -> Tensor
          result: like x
          decomposition: aten::where(aten::gt(aten::abs(x), width), x, 0.0) * -(1 - 3)
        - func: SPACE::twice(Tensor x) -> Tensor
          fake: beside_the_file:like
          decomposition: beside_the_file:twice
    """)
    for _ in range(4):
        x = torch.tensor([-2.0, 0.5, 3], device="tenon")
        assert ops["hard"](x).tolist() == [-4, 0, 6]
        assert ops["hard"](x, 2.5).tolist() == [0, 0, 6]
        assert ops["twice"](x).tolist() == [-4, 1, 6]


def test_a_kernel_for_a_target_that_is_not_here(load):
    kernel = "    - {device: npu, source: scale.c, entry: scale, arguments: [float32 result]}"
    scale = load(GOOD.replace("  backward:", f"{kernel}\n  backward:"))["scale"]
    assert scale(torch.ones(2, device="tenon"), 3.0).tolist() == [3, 3]
    alone = load(f"""
- func: SPACE::plus(Tensor x) -> Tensor
  result: like x
  kernels:
{kernel}
  decomposition: x + 1
""")["plus"]
    assert alone(torch.ones(2, device="tenon")).tolist() == [2, 2]


KERNEL = "{device: host, source: scale.c, entry: scale, arguments: [float32 result, float32 x]}"


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("- func: [", 1, "this is no YAML"),
        ("func: x", 1, "has to be a list of ops"),
        ("- func: SPACE::f(Tensor x) -> Tensor\n  func: y", 2, "`func` comes twice"),
        ("- fnuc: SPACE::f(Tensor x) -> Tensor", 1, "no key `fnuc`; the nearest is func"),
        ("- result: like x", 1, "an op needs `func`"),
        ("- func: 3", 1, "has to be a schema"),
        ("- func: SPACE::f(Tensor x) -> Tensor\n  result: like x", 1, "nothing runs it"),
        ("- result: like x\n  func: SPACE::f(Tensor\n  decomposition: x", 2, "is no schema"),
        ("- func: SPACE::f(Tensor x, str s) -> Tensor\n  decomposition: x", 1, "cannot take s"),
        ("- func: SPACE::f(Tensor x) -> Tensor\n  decomposition: x", 1, "by no `result`"),
        (
            "- func: SPACE::f(Tensor x) -> Tensor\n  result: like y\n  decomposition: x",
            2,
            "does not say what the result is like",
        ),
        (
            "- func: SPACE::f(Tensor x) -> Tensor\n  result:\n    sizes: [3]\n    dtype: flaot32\n"
            "  decomposition: x",
            4,
            "the nearest is float32",
        ),
        (
            "- func: SPACE::f(Tensor x) -> Tensor\n  result: like x\n"
            "  decomposition: aten::sfotmax(x)",
            3,
            "no op aten::sfotmax; the nearest is aten::softmax",
        ),
        (
            "- func: SPACE::f(Tensor x) -> Tensor\n  result: like x\n  decomposition: x.sum()",
            3,
            "neither a name, a number",
        ),
        (
            "- func: SPACE::f(Tensor x) -> Tensor\n  result: like x\n  decomposition: x\n"
            "  backward:\n    y: grad",
            5,
            "`backward` is of y",
        ),
        (
            "- func: SPACE::f(Tensor x) -> Tensor\n  result: like x\n  decomposition: x\n"
            "  backward:\n    x: SPACE::g(grad)",
            5,
            "there is no op",
        ),
        (
            "- func: SPACE::f(Tensor x) -> Tensor\n  result: like x\n  fake: nowhere.at:all\n"
            "  decomposition: nowhere.at:all",
            4,
            "No module named 'nowhere'",
        ),
        (
            "- func: SPACE::f(Tensor x) -> Tensor\n  kernels:\n    - device: host\n      entry: f",
            3,
            "a kernel needs `source`",
        ),
        (
            f"- func: SPACE::f(Tensor x) -> Tensor\n  kernels:\n    - {KERNEL}\n"
            f"    - {KERNEL.replace('host', 'opnecl')}",
            4,
            "no device 'opnecl'; the nearest is opencl",
        ),
        (
            "- func: SPACE::f(Tensor x) -> Tensor\n  kernels:\n    - device: host\n"
            "      source: nowhere.c\n      entry: f\n      arguments: []",
            4,
            "nowhere.c cannot be read: No such file",
        ),
        (
            "- func: SPACE::f(Tensor x) -> Tensor\n  kernels:\n    - device: host\n"
            "      source: scale.c\n      entry: f\n      arguments:\n        - float32 result\n"
            "        - float32 z",
            8,
            "z is no name of the op's",
        ),
        (
            "- func: SPACE::f(Tensor x) -> Tensor\n  kernels:\n    - device: host\n"
            "      source: scale.c\n      entry: f\n      arguments: [float32 result]\n"
            "      local_size: numel(z)",
            7,
            "there is no z here",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(load, tmp_path, text, line, problem):
    before = set(CUSTOM_OPS)
    with pytest.raises(KernelFileError) as raised:
        load(text)
    message = str(raised.value)
    assert message.startswith(f"{tmp_path / 'ops.yaml'}:{line}: ") and problem in message, message
    assert set(CUSTOM_OPS) == before


def test_a_file_that_was_wrong_can_be_loaded_again(load, tmp_path):
    path = tmp_path / "again.yaml"
    text = GOOD.replace("SPACE", "kernel_file_again")
    path.write_text(text.replace("(grad, factor)", "(grda, factor)"))
    with pytest.raises(KernelFileError, match="there is no grda here"):
        torch_tenon.load_kernels(path)
    path.write_text(text)
    (op,) = torch_tenon.load_kernels(path).values()
    assert op(torch.ones(1, device="tenon"), 3.0).item() == 3
    with pytest.raises(KernelFileError, match=r"again\.yaml:2: .*kernel_file_again::scale"):
        torch_tenon.load_kernels(path)


def test_source_that_does_not_build_names_its_line(load, tmp_path):
    (tmp_path / "scale.c").write_text(SCALE.replace("factor;", "factro;"))
    with pytest.raises(CompileError) as raised:
        load(GOOD)["scale"](torch.ones(1), 2.0)
    message = str(raised.value)
    assert f"{tmp_path / 'scale.c'}:4:" in message and "factro" in message
    Path(message.partition("the source is in ")[2].split()[0]).unlink()


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        torch_tenon.load_kernels(tmp_path / "none.yaml")


CHANGES = """
    import sys, torch, torch_tenon
    (op,) = torch_tenon.load_kernels(sys.argv[1]).values()
    for _ in range(4):
        y = op(torch.ones(2, device="tenon") * 3) * 1
    print(y.tolist())
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "compiled"])
def test_what_changes_between_processes_is_seen(tmp_path, mode):
    """Nothing that is kept of an op's calls, and no plan with its kernel, outlives the process."""
    text = """
        - func: changing::f(Tensor x) -> Tensor
          result: {sizes: [numel(x) * COUNT], dtype: like x}
          kernels:
            - device: host
              source: |
                void f(float *result, const float *x, long n) {
                    for (long i = 0; i < n; ++i) result[i] = x[i % 2] * FACTOR;
                }
              entry: f
              arguments: [float32 result, float32 x, int64 numel(result)]
    """
    path = tmp_path / "changing.yaml"
    environment = {"TENON_CACHE_DIR": str(tmp_path / "cache"), "TENON_EXECUTE": mode}
    for count, factor in ((1, 2), (3, 2), (3, 5)):
        changed = text.replace("COUNT", str(count)).replace("FACTOR", str(factor))
        path.write_text(textwrap.dedent(changed))
        assert output(CHANGES, str(path), **environment) == str([3.0 * factor] * 2 * count)
