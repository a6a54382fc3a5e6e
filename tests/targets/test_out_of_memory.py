"""A target that has no more memory, while what was recorded before runs."""

import pytest
from fresh_process import ASYNCHRONOUS_TARGET, REMOTE_TARGET, output

CODE = """
    import pytest, torch, torch_tenon
    from against_cpu import assert_same
    from turns import turns

    memory = type(torch_tenon.target().queue(0).memory)
    allocate = memory.allocate

    def update(x, total):
        total.add_(1)
        part = x[:4] * 2
        scaled = (x * 2 + 1).cumsum(0) * total[0]
        total.mul_(2)
        return part, scaled, scaled.sum()

    want, total_wanted = torch.rand(3 << 20), torch.zeros(4)
    x, total = want.to("tenon"), total_wanted.to("tenon")
    lost = 0
    for turn in turns(9):
        results = None
        torch.tenon.synchronize()
        torch.tenon.empty_cache()
        small = [torch.ones(4, device="tenon") + k for k in range(4)]  # there is room beside them
        torch.tenon.synchronize()
        results = update(x, total)
        if turn % 3 == 2:
            memory.allocate = lambda self, nbytes: 0
        try:
            torch.tenon.synchronize()
        except torch.OutOfMemoryError:
            lost += 1
        memory.allocate = allocate
        for result, expected in zip(results, update(want, total_wanted)):
            try:
                assert_same(result, expected, rtol=1e-3)
            except torch.OutOfMemoryError:
                assert result.numel() > 4, "one that fits is lost"
        assert_same(total, total_wanted)
        assert_same(x, want)
        assert_same(small, [torch.ones(4) + k for k in range(4)])
    print(lost)
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "compiled"])
@pytest.mark.parametrize("target", [REMOTE_TARGET, ASYNCHRONOUS_TARGET])
def test_what_has_no_memory_is_lost_and_nothing_else(target: str, mode: str) -> None:
    lost = output(CODE, TENON_TARGET=target, TENON_EXECUTE=mode)
    assert int(lost) >= 2


SCANS = """
    import torch, torch_tenon
    from against_cpu import assert_same
    from torch_tenon import _C
    from turns import turns

    memory = torch_tenon.target().queue(0).memory
    allocate, free = memory.allocate, memory.free
    sizes, most = {}, None

    def allocate_some(nbytes):
        if most is not None and sum(sizes.values()) + nbytes > most:
            return 0
        handle = allocate(nbytes)
        sizes[handle] = nbytes
        return handle

    def free_one(handle):
        del sizes[handle]
        free(handle)

    memory.allocate, memory.free = allocate_some, free_one

    def scans(x):
        first = x.cumsum(0).flip(0).cumsum(0)
        second = torch.cat([x, x]).cumsum(0).flip(0).cumsum(0)
        return first.sum(), second.sum()

    want = torch.rand(3 << 20)
    x = want.to("tenon")
    for turn in turns(6):
        torch.tenon.synchronize()
        torch.tenon.empty_cache()
        if turn >= 4:  # there is room for three of the four that are between
            most = sum(sizes.values()) + (62 << 20)
        results = scans(x)
        torch.tenon.synchronize()
        most = None
        assert_same(results, scans(want), rtol=1e-3)
    print(sum(w.by_plan for w in _C.window_runs()) > 0)
"""


@pytest.mark.slow
def test_a_plan_keeps_the_memory_of_steps_that_are_not_enqueued_yet() -> None:
    assert output(SCANS, TENON_TARGET=ASYNCHRONOUS_TARGET, TENON_EXECUTE="compiled") == "True"


def test_memory_counts_until_the_target_has_it_back() -> None:
    code = """
        import torch, torch_tenon
        memory = torch_tenon.target()._memories[0]
        free, counted = memory.free, []
        def noted(handle):
            counted.append(torch.tenon.memory_reserved())
            free(handle)
        memory.free = noted
        kept = torch.ones(8 << 20, device="tenon") + 1
        large = kept * 2
        torch.tenon.synchronize()
        before = torch.tenon.memory_reserved()
        del large
        torch.tenon.empty_cache()
        assert set(counted) == {before}, (before, counted)
        assert torch.tenon.memory_reserved() < before
        print(kept.sum().item())
    """
    assert output(code, TENON_TARGET=ASYNCHRONOUS_TARGET) == str(2.0 * (8 << 20))
