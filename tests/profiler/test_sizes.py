"""What a profile says of one plan that runs for sizes of several values."""

import torch
from torch.nn import functional as F

from torch_tenon import _C
from torch_tenon.profiler import log
from torch_tenon.profiler.log import Subjects


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
