"""Copies from one device of a target to another: by the target itself, and through the host."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
from fresh_process import output

sys.path.insert(0, str(Path(__file__).parent))
from c_compiler import ROOT, needs_compiler, shared_object

HERE = Path(__file__).parent
BETWEEN = f"{HERE / 'between.py'}:BetweenTarget"
WITHOUT = f"{HERE / 'asynchronous.py'}:AsynchronousTarget"

START = """
    import random
    import torch
    import torch_tenon

    target = torch_tenon.target()
    first, second = torch.device("tenon:0"), torch.device("tenon:1")

    def same(found, expected):
        torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0)
"""


def _run(target: str, code: str) -> str:
    settings = {"TENON_TARGET": target, "TENON_DEVICES": "2", "TENON_EXECUTE": "compiled"}
    return output(textwrap.dedent(START) + textwrap.dedent(code), **settings)


# Whole numbers as floats, so that sums are the same in any order.
PROGRAMS = """
    for seed in range(12):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        expected = [torch.randint(-9, 9, (30, 40)).float() for _ in range(4)]
        found = [x.to(first if k % 2 else second) for k, x in enumerate(expected)]
        for step in range(60):
            a, b = rng.sample(range(4), 2)
            rows = slice(rng.randrange(15), rng.randrange(15, 31))
            case = rng.randrange(6)
            for x in (expected, found):
                if case == 0:  # pending work on both devices
                    x[a].add_(1).clamp_(max=50)
                    x[b].neg_()
                elif case == 1:
                    x[a].copy_(x[b])
                elif case == 2:
                    x[a][rows].copy_(x[b][rows])
                elif case == 3:
                    x[a][:30, :30].t().copy_(x[b][:, 10:])
                elif case == 4:
                    x[a][:, ::2].copy_(x[b][:1, 1::2].expand(30, 20))
                else:
                    x[a] = x[b].to(x[a].device, torch.float64).clamp(min=-20).float()
        for x, y in zip(found, expected):
            same(x, y)
"""


@pytest.mark.slow
@pytest.mark.parametrize("target", [BETWEEN, WITHOUT])
def test_random_programs_over_two_devices(target: str) -> None:
    code = """
    print([q.between > 0 for q in target._queues if hasattr(q, "between")])
    """
    found = _run(target, PROGRAMS + code)
    assert found == ("[True, True]" if target is BETWEEN else "[]")


def test_a_copy_does_not_meet_the_host() -> None:
    code = """
        def moved(function):
            "How many copies were between devices, and how many met the host."
            torch.accelerator.synchronize(0), torch.accelerator.synchronize(1)
            before = [(q.between, q.through_host) for q in target._queues]
            result = function()
            after = [(q.between, q.through_host) for q in target._queues]
            changed = [b - a for x, y in zip(before, after) for a, b in zip(x, y)]
            return result, changed

        functions = [
            lambda x: x,
            lambda x: x.t(),
            lambda x: x[3:, ::2],
            lambda x: x[0].expand(7, 60),
        ]
        of_complex = [lambda x: x.conj(), lambda x: x.real, lambda x: x.imag]
        for dtype in (torch.float32, torch.complex64):
            x = torch.randn(50, 60, dtype=dtype)
            there = x.to(first)
            for function in functions + (of_complex if dtype.is_complex else []):
                # What a call's results look like is learned from a run on the host.
                for _ in range(3):
                    result, changed = moved(lambda: function(there).to(second))
                    assert result.device == second and changed[2:] == [1, 0], changed
                    same(result, function(x))
                # The kernel that makes it dense is the device's.
                assert dtype.is_complex or changed == [0, 0, 1, 0], changed
        empty, changed = moved(lambda: there[:0].to(second))
        assert empty.shape == (0, 60) and changed == [0, 0, 0, 0]
        for shape in ((50, 61), (3,)):
            try:
                torch.empty(shape, device=second, dtype=x.dtype).copy_(there)
            except RuntimeError as error:
                continue
            raise AssertionError("shapes that do not fit")
        print("there")
    """
    assert _run(BETWEEN, code) == "there"


def test_gradients_go_between_devices() -> None:
    code = """
        x = torch.randn(20, 30)
        results = []
        for here, there in ((first, second), ("cpu", "cpu")):
            leaf = x.to(here).requires_grad_()
            (leaf.sin().to(there) * 2).square().sum().backward()
            results.append(leaf.grad.cpu())
        torch.testing.assert_close(*results)
        print(target._queues[0].between, target._queues[1].between)
    """
    assert _run(BETWEEN, code) == "1 1"


def test_a_fault_of_a_copy_is_told_and_the_devices_go_on() -> None:
    code = """
        x = torch.arange(1000.0).to(first) + 1
        torch.accelerator.synchronize(0)
        for how in ("wait", "both", "refuses"):
            queue = target._queues[1]
            if how == "refuses":
                queue.refuses = True
            else:
                queue.loses = how
            try:
                x.to(second)
            except RuntimeError as error:
                text = str(error)
            else:
                raise AssertionError(how)
            assert ("the link" if how == "refuses" else "lost its power") in text, text
            queue.refuses = False
            same(x.to(second) * 2, (torch.arange(1000.0) + 1) * 2)
            same(x, torch.arange(1000.0) + 1)
        # An error of what is copied is told as well.
        y = torch.ones(1000, device=first)
        torch.accelerator.synchronize(0)
        target._queues[0].loses = "wait"
        y = y + 1
        try:
            y.to(second)
        except RuntimeError as error:
            assert "lost its power" in str(error)
        else:
            raise AssertionError("what was computed is lost")
        print("told")
    """
    assert _run(BETWEEN, code) == "told"


COPY_FROM = """
static int copies;

int between(void) {
  return copies;
}

static int32_t copy_from(
    void *context, int32_t device, tenon_place to, int32_t other, tenon_place from, uint64_t nbytes,
    tenon_status *status) {
  if (device == other)
    return fail(status, TENON_ERROR, "one device is not two");
  command *c = enqueue(move, NULL, 2);
  if (!c)
    return fail(status, TENON_OUT_OF_MEMORY, "no memory for a command");
  c->memory[0] = address(to);
  c->memory[1] = address(from);
  c->numbers[0] = (int64_t)nbytes;
  copies += 1;
  return TENON_OK;
}

static int32_t launch("""


@needs_compiler
def test_a_library_copies_between_its_devices(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "toy.c").read_text()
    for old, new in (
        ("\nstatic int32_t launch(", COPY_FROM),
        (".devices = 1,", ".devices = 2, .copy_from = copy_from,"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    source = tmp_path / "two.c"
    source.write_text(text)
    library = shared_object(source, tmp_path / "libtwo.so")
    code = f"""
        import ctypes
        x = torch.randn(33, 44)
        y = x.to(first).t()
        for _ in range(3):
            same(y.to(second), x.t())
        same(y.to(second).to(first)[1:], x.t()[1:])
        print(ctypes.CDLL({str(library)!r}).between())
    """
    assert _run(str(library), code) == "5"
