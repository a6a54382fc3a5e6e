"""What a profile says of one plan that runs for sizes of several values."""

import pytest
import torch
from fresh_process import output
from plans import plans_made
from torch.nn import functional as F

from torch_tenon import _C
from torch_tenon.reports.profiler import log
from torch_tenon.reports.profiler.log import Subjects


def steps_of(run):
    """What is known of the steps of plans that ran."""
    torch.tenon.synchronize()
    found = _C.ProfileLog(1 << 12)
    run()
    torch.tenon.synchronize()
    found.stop()
    subjects = Subjects()
    return [subjects[n] for n in log.of(log.take(found), *log.BY_PLAN)["subject"]]


def test_a_compiled_graph_s_steps_are_of_the_sizes_at_hand():
    weight, filters = torch.randn(48, 16, device="tenon"), torch.randn(5, 3, 3, 3, device="tenon")

    @torch.compile(backend="tenon", dynamic=True)
    def both(x, y, images):
        return x @ weight, (y * 2 + 1).relu(), F.conv2d(images, filters)

    def given(n):
        shapes = ((n, 48), (n, 24), (n, 3, 8, 8))
        return [torch.randn(s, device="tenon") for s in shapes]

    both(*given(32))
    for n in (32, 21, 50):
        tensors = given(n)
        steps = steps_of(lambda tensors=tensors: both(*tensors))
        product = next(s for s in steps if "mm" in s.name)
        assert product.detail.startswith(f"{n} x 16: float32")
        assert product.bytes == 4 * (n * 48 + 48 * 16 + n * 16)
        assert product.operations == 2 * n * 48 * 16 + n * 16
        chain = next(s for s in steps if "relu" in s.name)
        assert chain.detail == f"{n * 24}: float32"
        assert chain.bytes == 2 * 4 * n * 24
        convolution = next(s for s in steps if "conv" in s.name)
        assert f"float32[{n}, 3, 8, 8]" in convolution.detail
        assert convolution.operations == 2 * n * 5 * 6 * 6 * 3 * 3 * 3


def window(n, weight):
    """A product and a chain of n rows."""
    x, y = torch.randn(n, 48).to("tenon"), torch.randn(n, 24).to("tenon")
    return (y * 2 + 1).relu().cpu(), (x @ weight).cpu()


def check_a_window(n, weight):
    """Runs it, and looks at what the profile has of it."""
    steps = steps_of(lambda: window(n, weight))
    product = next(s for s in steps if "mm" in s.name)
    assert product.detail.startswith(f"{n} x 16: float32")
    assert product.bytes == 4 * (n * 48 + 48 * 16 + n * 16)
    assert product.operations >= 2 * n * 48 * 16
    chain = next(s for s in steps if "relu" in s.name)
    # Its numbers are arguments where other programs of the process had others there.
    assert chain.detail.startswith(f"{n * 24}: float32")
    assert 0 <= chain.bytes - 2 * 4 * n * 24 <= 16


@pytest.mark.slow
def test_a_window_s_steps_are_of_the_sizes_at_hand(compiled):
    weight = torch.randn(48, 16, device="tenon")
    for n in (32, 32, 21, 50, 17):
        window(n, weight)
    made = plans_made()
    for n in (40, 21, 64, 5, 40, 32):
        check_a_window(n, weight)
    assert plans_made() == made


@pytest.mark.slow
def test_a_window_s_steps_are_so_in_the_next_process(tmp_path):
    code = """
        import sys, torch
        from profiler import test_sizes
        from torch_tenon.builder.counts import plan_counts
        weight = torch.randn(48, 16, device="tenon")
        for n in map(int, sys.argv[2:]):
            getattr(test_sizes, sys.argv[1])(n, weight)
        print(plan_counts()["reference"])
    """
    environment = {
        "TENON_CACHE_DIR": str(tmp_path / "cache"),
        "TENON_PLAN_FILES": "1",
        "TENON_EXECUTE": "compiled",
        "TENON_BUILDER": "thread",
    }
    output(code, "window", *map(str, (32, 32, 21, 50, 17)), **environment)
    assert output(code, "check_a_window", *map(str, (40, 21, 64, 5)), **environment) == "0"
