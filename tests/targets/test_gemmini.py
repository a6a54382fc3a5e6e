"""The systolic array of examples/gemmini: right results, and its exact cycles."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fresh_process import output
from needs import library_targets

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "gemmini"
TARGET = f"{FOLDER / 'gemmini.py'}:Gemmini"

pytestmark = [
    library_targets,
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler"),
]

# Cycles of products: m, k, n, then of float32 and of int8. README.md has the same table.
PRODUCTS = [
    (128, 128, 128, 14530, 9922),
    (256, 256, 256, 72002, 67266),
    (512, 512, 512, 530754, 526018),
    (256, 1024, 256, 268610, 263874),
    (200, 300, 100, 34069, 28986),
]

# Cycles of convolutions: images, channels, size, results' channels, kernel, stride.
CONVOLUTIONS = [
    (1, 3, 224, 64, 7, 2, 708946),
    (1, 64, 56, 64, 3, 1, 573931),
    (1, 64, 56, 64, 1, 1, 64770),
    (1, 128, 56, 128, 3, 2, 601922),
    (1, 128, 28, 128, 3, 1, 489794),
    (1, 256, 14, 256, 3, 1, 558610),
    (1, 512, 7, 512, 3, 1, 723698),
]

# Of ResNet-50 for four images: its convolutions and its last product.
RESNET50 = 81339174


def _run(code: str, execute: str = "compiled", *arguments: str) -> str:
    start = """
        import copy, sys
        import torch, torch_tenon
        import torch.nn.functional as F
        from torch import nn

        target = torch_tenon.target()
        close = torch.testing.assert_close

        def compiled(function):
            torch._dynamo.reset()
            return torch.compile(function, backend="tenon", dynamic=False)
    """
    return output(start + code, *arguments, TENON_TARGET=TARGET, TENON_EXECUTE=execute)


@pytest.mark.slow
def test_products_and_their_cycles() -> None:
    code = f"""
        for m, k, n, *_ in {PRODUCTS}:
            a, b = torch.randn(m, k), torch.randn(k, n)
            x, y = a.to("tenon"), b.to("tenon")
            target.counted()
            close(compiled(torch.mm)(x, y).cpu(), a @ b, rtol=1e-4, atol=1e-3)
            floats = target.counted()
            a, b = (torch.randint(-128, 128, s, dtype=torch.int8) for s in ((m, k), (n, k)))
            x, y = a.to("tenon"), b.to("tenon").t()
            close(torch._int_mm(x, y).cpu(), a.int() @ b.int().t(), rtol=0, atol=0)
            bytes = target.counted()
            assert floats.products == bytes.products == 1
            assert floats.multiplications == bytes.multiplications == m * k * n
            if min(m, k, n) >= 256:
                assert floats.utilization > 0.8 and bytes.utilization > 0.95
            print((m, k, n, floats.cycles, bytes.cycles), end=", ")
    """
    assert _run(code) == "".join(f"{row}, " for row in PRODUCTS).strip()


@pytest.mark.slow
def test_convolutions_and_their_cycles() -> None:
    code = f"""
        for images, channels, size, results, kernel, stride, _ in {CONVOLUTIONS}:
            x = torch.randn(images, channels, size, size)
            w = torch.randn(results, channels, kernel, kernel)
            given = x.to("tenon"), w.to("tenon")
            target.counted()
            found = compiled(F.conv2d)(*given, None, stride, kernel // 2).cpu()
            close(found, F.conv2d(x, w, None, stride, kernel // 2), rtol=1e-3, atol=1e-3)
            counted = target.counted()
            assert counted.utilization > 0.6 and counted.calls == 0
            print((images, channels, size, results, kernel, stride, counted.cycles), end=", ")
    """
    assert _run(code) == "".join(f"{row}, " for row in CONVOLUTIONS).strip()


@pytest.mark.slow
def test_the_cycles_of_resnet50() -> None:
    code = """
        from collections import Counter

        layers = Counter({(3, 224, 64, 7, 2): 1})
        channels, size = 64, 56
        for stage, blocks in enumerate((3, 4, 6, 3)):
            inner, outer = 64 << stage, 256 << stage
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                after = size // stride
                layers[channels, size, inner, 1, 1] += 1
                layers[inner, size, inner, 3, stride] += 1
                layers[inner, after, outer, 1, 1] += 1
                if block == 0:
                    layers[channels, size, outer, 1, stride] += 1
                channels, size = outer, after
        assert layers.total() == 53
        cycles = 0
        for (channels, size, results, kernel, stride), times in layers.items():
            x = torch.randn(4, channels, size, size, device="tenon")
            w = torch.randn(results, channels, kernel, kernel, device="tenon")
            target.counted()
            compiled(F.conv2d)(x, w, None, stride, kernel // 2).cpu()
            cycles += times * target.counted().cycles
        x, w = torch.randn(4, 2048, device="tenon"), torch.randn(2048, 1000, device="tenon")
        target.counted()
        compiled(torch.mm)(x, w).cpu()
        print(cycles + target.counted().cycles)
    """
    assert _run(code) == str(RESNET50)


MODELS = """
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.LayerNorm(32), nn.LayerNorm(32)
                self.inputs, self.outputs = nn.Linear(32, 96), nn.Linear(32, 32)
                self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

            def forward(self, x):
                heads = self.inputs(self.first(x)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
                mixed = F.scaled_dot_product_attention(*heads.unbind(), is_causal=True)
                x = x + self.outputs(mixed.transpose(1, 2).flatten(2))
                return x + self.down(F.gelu(self.up(self.second(x))))

        models = {
            "cnn": (nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(8, 16, 3, padding=1, stride=2), nn.ReLU(), nn.Conv2d(16, 16, 1),
                nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
            ).eval(), torch.randn(2, 3, 20, 20)),
            "transformer": (Block(), torch.randn(2, 12, 32)),
        }
        net, x = models[sys.argv[1]]
        there, given = copy.deepcopy(net).to("tenon"), x.to("tenon")
        want = net(x)
"""


@pytest.mark.slow
@pytest.mark.parametrize("model", ["cnn", "transformer"])
def test_models(model: str, tmp_path: Path) -> None:
    code = f"""{MODELS}
        with torch.no_grad():
            for run in (there, compiled(there)):
                for _ in range(3):  # what each op gives is learned first, by reference
                    close(run(given).cpu(), want, rtol=1e-4, atol=1e-4)
                    counted = target.counted()
                assert counted.products > 3 and counted.host > 0 and counted.calls == 0
        torch_tenon.export(net, (x,), path=sys.argv[2])
        program = torch_tenon.load(sys.argv[2], target=str(target.path))
        close(program(x), want.detach(), rtol=1e-4, atol=1e-4)
        print(target.counted().products > 3)
    """
    assert _run(code, "compiled", model, str(tmp_path / "model.tenon")).endswith("True")


@pytest.mark.slow
def test_strides_batches_and_nothing() -> None:
    code = """
        def multiply(a, b):
            return (a @ b + 1).relu()

        a, b = torch.randn(3, 40, 24)[:, ::2], torch.randn(3, 37, 24).transpose(1, 2)
        ours = [t.to("tenon").requires_grad_() for t in (a, b)]
        close(compiled(multiply)(*ours).cpu(), multiply(a, b))
        compiled(multiply)(*ours).square().sum().backward()
        theirs = [t.clone().requires_grad_() for t in (a, b)]
        multiply(*theirs).square().sum().backward()
        for x, y in zip(ours, theirs, strict=True):
            close(x.grad.cpu(), y.grad, rtol=1e-4, atol=1e-4)
        assert target.counted().products >= 12
        a, b = (torch.randint(-128, 128, (33, 34), dtype=torch.int8) for _ in range(2))
        ours = torch._int_mm(a.to("tenon")[::2, 1:], b.to("tenon").t()[1:, 3:])
        close(ours.cpu(), a.int()[::2, 1:] @ b.int().t()[1:, 3:], rtol=0, atol=0)
        a, b = torch.randn(3, 0), torch.randn(0, 2)
        close(compiled(torch.mm)(a.to("tenon"), b.to("tenon")).cpu(), a @ b)
        half = torch.randn(8, 8, dtype=torch.bfloat16)
        here = half.to("tenon")
        close(compiled(torch.mm)(here, here).cpu(), half @ half)
        print(target.counted().products)
    """
    assert _run(code) == "1"  # of bytes; nothing is launched without elements


@pytest.mark.slow
def test_layers_of_bytes(tmp_path: Path) -> None:
    code = """
        sys.path.insert(0, sys.argv[1])
        from int8 import Int8Linear, int8_mm, quantized

        a, b = (torch.randint(-128, 128, s, dtype=torch.int8) for s in ((33, 70), (50, 70)))
        given = a.to("tenon"), b.to("tenon").t()
        for run in (int8_mm, compiled(int8_mm)):
            close(run(*given).cpu(), a.int() @ b.int().t(), rtol=0, atol=0)

        class Exact(nn.Module):
            def __init__(self, layer):
                super().__init__()
                self.layer = layer

            def forward(self, x):
                l = self.layer
                sums = quantized(x, l.input_scale).int() @ l.weight.int()
                return sums * (l.scale * l.input_scale) + l.bias

        layers = [Int8Linear(nn.Linear(*s), 4.0) for s in ((32, 48), (48, 8))]
        x = torch.randn(4, 5, 32)
        want = nn.Sequential(Exact(layers[0]), nn.ReLU(), Exact(layers[1]))(x).detach()
        net = nn.Sequential(layers[0], nn.ReLU(), layers[1]).eval()
        target.counted()
        torch_tenon.export(net, (x,), path=sys.argv[2])
        close(torch_tenon.load(sys.argv[2], target=str(target.path))(x), want)
        products = target.counted().products
        with torch.no_grad():
            close(compiled(net.to("tenon"))(x.to("tenon")).cpu(), want)
        counted = target.counted()
        print(products, counted.products, counted.calls)
    """
    found = _run(code, "compiled", str(FOLDER), str(tmp_path / "bytes.tenon"))
    assert found.splitlines()[-1] == "2 2 0"


def test_the_page_has_the_figures() -> None:
    page = (FOLDER / "README.md").read_text()
    for m, k, n, floats, small in PRODUCTS:
        parts = [f"{round(100 * m * k * n / 256 / cycles)} %" for cycles in (floats, small)]
        row = f"| {m} x {k} x {n} | {floats:,} | {parts[0]} | {small:,} | {parts[1]} |"
        assert row in page
    for _, channels, size, results, kernel, stride, cycles in CONVOLUTIONS:
        places = (-(-size // stride)) ** 2
        part = round(100 * places * channels * results * kernel**2 / 256 / cycles)
        layer = f"{kernel} x {kernel} by {stride}, {channels} to {results}, {size} x {size}"
        assert f"| {layer} | {cycles:,} | {part} % |" in page
    assert f"| {RESNET50:,} | 79 % |" in page


def test_the_target_stays_small() -> None:
    assert sum(len(path.read_text().splitlines()) for path in FOLDER.glob("*.py")) < 900
