"""Errors that show when a recorded call runs: what failed raises them, the rest has its values."""

import contextlib
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from against_cpu import assert_same, executing
from fresh_process import run
from turns import MODES, in_thread, settle, turns

ROWS, COLUMNS = 8, 4


class Failing(NamedTuple):
    """A call of rows and indices that fails where an index is ROWS + 1."""

    compute: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    op: str  # as the message names it
    error: type[Exception]
    message: str


BEYOND = f"index {ROWS + 1} is out of bounds for dimension 0 with size {ROWS}"
FAILING = {
    "gather": Failing(lambda x, i: x.gather(0, i), "gather", RuntimeError, BEYOND),
    "embedding": Failing(
        lambda x, i: torch.nn.functional.embedding(i[:, 0], x),
        "embedding",
        IndexError,
        "index out of range in self",
    ),
    "index_select": Failing(
        lambda x, i: x.index_select(0, i[:, 0]), "index_select", IndexError, "index .*out of"
    ),
    "advanced_indexing": Failing(lambda x, i: x[i[:, 0]], "index", IndexError, BEYOND),
    "floor_divide": Failing(
        lambda x, i: torch.floor_divide(i * 5, i - ROWS - 1),
        "floor_divide",
        RuntimeError,
        "ZeroDivisionError",
    ),
    "remainder": Failing(
        lambda x, i: i.remainder(i - ROWS - 1), "remainder", RuntimeError, "ZeroDivisionError"
    ),
}


def indices(bad: bool) -> torch.Tensor:
    i = torch.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) % ROWS
    if bad:
        i[3, 0] = ROWS + 1
    return i


def error_of(read: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as raised:
        print("no error, but", read())
    return raised.value


def assert_fails(x: torch.Tensor, error: type[Exception], message: str) -> None:
    """Each way to the numbers of `x`, on each thread, raises one and the same error."""
    first = error_of(x.cpu)
    assert type(first) is error, first
    assert re.search(message, str(first)), first
    ways = (x.cpu, x.tolist, lambda: x.flatten()[0].item(), lambda: str(x))
    again = [error_of(way) for way in ways]
    again.append(error_of(lambda: in_thread(x.cpu)))
    assert {(type(e), str(e)) for e in again} == {(error, str(first))}


class Rest:
    """Calls around one that fails, of its sizes, so that one plan's loop could hold them all."""

    def __init__(self, x: torch.Tensor, i: torch.Tensor) -> None:
        self.x, self.i = x, i
        self.written, self.counted = x.clone(), i.clone()

    def before(self) -> None:
        self.scaled = self.x * 2 + 1
        self.shifted = self.x - 3
        self.written.add_(self.x)
        self.whole = self.i + 1

    def after(self) -> None:
        self.product = self.scaled * self.shifted
        self.written.mul_(2)
        self.written[1:].sub_(self.shifted[1:])
        self.counted += 1
        self.total = self.scaled.sum(1)

    def results(self) -> list[torch.Tensor]:
        named = (self.scaled, self.shifted, self.product, self.total, self.written)
        return [*named, self.counted, self.whole, self.x, self.i]


def expected(x: torch.Tensor, i: torch.Tensor) -> list[torch.Tensor]:
    rest = Rest(x, i)
    rest.before()
    rest.after()
    return rest.results()


def late(failing: Failing, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor | None:
    """The result, which raises when it is read; None where the call itself raises."""
    try:
        return failing.compute(x, i)
    except failing.error as error:
        assert re.search(failing.message, str(error))
        return None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FAILING)
def test_the_rest_has_its_values_and_what_failed_says_so(name: str, mode: str) -> None:
    failing = FAILING[name]
    with executing(mode):
        for turn in turns(6):
            bad = turn >= 3  # by then the calls are recorded, and a plan may run them
            x, i = torch.rand(ROWS, COLUMNS), indices(bad)
            want = expected(x, i)
            rest = Rest(x.to("tenon"), i.to("tenon"))
            rest.before()
            failed = late(failing, rest.x, rest.i)
            if failed is not None:
                follows = failed * 2 + rest.scaled
                mixed = rest.shifted.clone()
                mixed[2:].add_(failed[2:])
            rest.after()
            if not bad:
                assert failed is not None
                assert_same(failed, failing.compute(x, i))
            if turn % 2:
                assert_same(rest.results(), want, rtol=1e-6, atol=1e-6)
            if bad and failed is not None:
                for lost in (failed, follows, mixed, failed[4:], failed.view(-1), follows.t()):
                    assert_fails(lost, failing.error, failing.message)
            assert_same(rest.results(), want, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_the_rest_of_a_training_step_is_done(mode: str) -> None:
    """A wrong label loses the loss, and not the update of another model beside it."""
    with executing(mode):
        for turn in turns(6):
            torch.manual_seed(turn)
            weight, grad, momentum = torch.rand(3, ROWS, COLUMNS)
            want = (momentum * 0.9 + grad, weight - 0.1 * (momentum * 0.9 + grad))
            weight, grad, momentum = (t.to("tenon") for t in (weight, grad, momentum))
            labels = (torch.arange(ROWS) % COLUMNS).to("tenon")
            momentum.mul_(0.9).add_(grad)
            try:
                loss = torch.nn.functional.nll_loss(
                    torch.log_softmax(grad, 1), labels + (COLUMNS if turn >= 3 else 0)
                )
            except IndexError:
                loss = None
            weight.sub_(momentum, alpha=0.1)
            if turn >= 3 and loss is not None:
                assert type(error_of(loss.item)) is IndexError
            assert_same([momentum, weight], want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bad_call", ["cholesky", "inv", "solve"])
def test_a_library_call_that_fails_in_the_middle(bad_call: str, mode: str) -> None:
    call = {
        "cholesky": torch.linalg.cholesky,
        "inv": torch.linalg.inv,
        "solve": lambda m: torch.linalg.solve(m, torch.ones_like(m)),
    }[bad_call]
    with executing(mode):
        for turn in turns(6):
            m = torch.eye(ROWS) * (0.0 if turn >= 3 else 2.0) + turn * 0
            x, i = torch.rand(ROWS, COLUMNS), indices(False)
            want = expected(x, i)
            rest = Rest(x.to("tenon"), i.to("tenon"))
            rest.before()
            there = m.to("tenon") * 1
            if turn < 3:
                assert_same(call(there), call(m), rtol=1e-5, atol=1e-6)
            else:
                assert type(error_of(lambda m=there: call(m).cpu())) is torch.linalg.LinAlgError
            rest.after()
            assert_same(rest.results(), want, rtol=1e-6, atol=1e-6)
            assert_same(there, m)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_what_is_overwritten_as_a_whole_can_be_read_again(mode: str) -> None:
    overwrites = (
        lambda t: t.zero_(),
        lambda t: t.fill_(3),
        lambda t: t.copy_(torch.ones(ROWS, COLUMNS)),
        lambda t: torch.add(torch.ones_like(t), 1, out=t),
        lambda t: (torch._foreach_zero_([t]), t)[1],
        lambda t: t.uniform_(2, 2),
    )
    failing = FAILING["gather"]
    with executing(mode):
        for turn in turns(4 + 2 * len(overwrites)):
            x = torch.rand(ROWS, COLUMNS, device="tenon")
            failed = late(failing, x, indices(turn >= 4).to("tenon"))
            if failed is None:
                continue
            follows = failed + 1
            if turn >= 4 and turn % 2:
                settle_despite_the_error()
            if turn >= 4:
                failed[1:].zero_()
                assert_fails(failed, RuntimeError, BEYOND)
                # A first call of its kind runs at once, and reads.
                with contextlib.suppress(RuntimeError):
                    failed.add_(1)
                assert_fails(failed, RuntimeError, BEYOND)
            overwrite = overwrites[turn % len(overwrites)]
            assert overwrite(failed) is failed
            assert_same(failed, overwrite(torch.empty(ROWS, COLUMNS)))
            assert_same(failed * 2, overwrite(torch.empty(ROWS, COLUMNS)) * 2)
            if turn >= 4:
                assert_fails(follows, RuntimeError, BEYOND)


def settle_despite_the_error() -> None:
    """What was recorded runs; its error shows where its result is read."""
    try:
        settle()
    except (RuntimeError, IndexError):
        settle()


@pytest.mark.parametrize("mode", MODES)
def test_what_is_overwritten_in_part_stays_failed(mode: str) -> None:
    with executing(mode):
        for turn in turns(6):
            torch.randn(ROWS // 2, COLUMNS, device="tenon").zero_()
            x = torch.rand(ROWS, COLUMNS, device="tenon")
            failed = late(FAILING["gather"], x, indices(bad=turn >= 3).to("tenon"))
            assert failed is not None or (turn >= 3 and mode == "reference")
            if turn < 3 or failed is None:
                continue
            settle_despite_the_error()
            failed[: ROWS // 2].zero_()
            for part in (failed[ROWS // 2 :], failed):
                with pytest.raises(RuntimeError, match=BEYOND):
                    part.cpu()


@pytest.mark.parametrize("mode", MODES)
def test_a_later_window_that_uses_what_failed_fails(mode: str) -> None:
    failing = FAILING["gather"]
    with executing(mode):
        for turn in turns(8):
            x = torch.rand(ROWS, COLUMNS)
            there = x.to("tenon")
            failed = late(failing, there, indices(turn >= 4).to("tenon"))
            if turn >= 4 and failed is not None:
                if turn % 2:
                    assert_fails(failed, RuntimeError, BEYOND)
                else:
                    settle_despite_the_error()
            for _ in range(2):  # each in a window of its own
                sound = there * 2 + 1
                if failed is not None:
                    failed = torch.relu(failed * 2)
                    if turn >= 4:
                        assert_fails(failed, RuntimeError, BEYOND)
                        assert type(error_of(lambda x=failed: bool(x.sum() > 0))) is RuntimeError
                assert_same(sound, x * 2 + 1)
            if failed is not None and turn < 4:
                assert_same(failed, x.gather(0, indices(False)).mul(4))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_two_calls_that_fail_raise_their_own_errors(mode: str) -> None:
    with executing(mode):
        for turn in turns(6):
            x, i = torch.rand(ROWS, COLUMNS), indices(turn >= 3)
            want = expected(x, i)
            rest = Rest(x.to("tenon"), i.to("tenon"))
            rest.before()
            divided = late(FAILING["floor_divide"], rest.x, rest.i)
            chosen = late(FAILING["gather"], rest.x, rest.i)
            both = None if divided is None or chosen is None else chosen + divided
            rest.after()
            assert_same(rest.results(), want, rtol=1e-6, atol=1e-6)
            if turn < 3:
                continue
            for result, name in ((chosen, "gather"), (divided, "floor_divide")):
                if result is not None:
                    assert_fails(result, FAILING[name].error, FAILING[name].message)
            if both is not None:
                assert_fails(both, RuntimeError, f"{BEYOND}|ZeroDivisionError")
            assert_same(rest.results(), want, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "compiled"])
@pytest.mark.parametrize("name", FAILING)
def test_the_message_names_the_op(name: str, mode: str) -> None:
    """One that came late; at the call the traceback tells."""
    failing = FAILING[name]
    with executing(mode):
        for turn in turns(6):
            x = torch.rand(ROWS, COLUMNS, device="tenon")
            i = indices(turn >= 3).to("tenon")
            failed = late(failing, x, i)
            if turn >= 3 and failed is not None:
                assert failing.op in str(error_of(lambda failed=failed: (failed + 1).cpu()))


@pytest.mark.parametrize("mode", MODES)
def test_synchronize_raises_what_nobody_has_seen_once(mode: str) -> None:
    with executing(mode):
        for turn in turns(6):
            x = torch.rand(ROWS, COLUMNS)
            there = x.to("tenon")
            failed = late(FAILING["gather"], there, indices(turn >= 3).to("tenon"))
            after = there * 2 - 1
            there.add_(1)
            if turn >= 3 and failed is not None:
                error = error_of(torch.tenon.synchronize)
                assert type(error) is RuntimeError and BEYOND in str(error)
                torch.tenon.synchronize()
                torch.accelerator.synchronize()
                assert_fails(failed, RuntimeError, BEYOND)
                torch.tenon.synchronize()
            assert_same([after, there], [x * 2 - 1, x + 1])
            if turn >= 3:
                failed = late(FAILING["gather"], there, indices(True).to("tenon"))
                if failed is not None:
                    assert_fails(failed, RuntimeError, BEYOND)
                torch.tenon.synchronize()  # it was seen


@pytest.mark.parametrize("mode", MODES)
def test_synchronize_raises_the_errors_of_streams_one_after_another(mode: str) -> None:
    streams = [torch.Stream("tenon") for _ in range(2)]
    with executing(mode):
        for turn in turns(6):
            x = torch.rand(ROWS, COLUMNS).to("tenon")
            i = indices(turn >= 3).to("tenon")
            lost = []
            for stream in streams:
                with stream:
                    lost.append(late(FAILING["gather"], x, i))
            for failed in lost:
                if turn >= 3 and failed is not None:
                    assert BEYOND in str(error_of(torch.tenon.synchronize))
            torch.tenon.synchronize()


@pytest.mark.parametrize("mode", MODES)
def test_an_error_belongs_to_the_thread_that_recorded_and_to_the_reader(mode: str) -> None:
    with executing(mode):
        for turn in turns(6):
            x = torch.rand(ROWS, COLUMNS)
            there, i = x.to("tenon"), indices(turn >= 3).to("tenon")
            torch.tenon.synchronize()
            mine = there * 3
            failed = in_thread(lambda t=there, i=i: late(FAILING["gather"], t, i))

            def unrelated(x: torch.Tensor = x) -> None:
                own = x.to("tenon") * 2 + 1
                torch.tenon.synchronize()
                assert_same(own, x * 2 + 1)

            in_thread(unrelated)
            torch.tenon.synchronize()
            assert_same(mine, x * 3)
            if turn >= 3 and failed is not None:
                assert_fails(failed, RuntimeError, BEYOND)
                assert_fails(failed * 2, RuntimeError, BEYOND)
            in_thread(unrelated)


def weights_of(device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.rand(5, 3).to(device).requires_grad_() for _ in range(2)]


def update(weights: list[torch.Tensor], optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.zero_grad()
    sum((w * (number + 1)).square().sum() for w in weights).backward()
    optimizer.step()


def sgd(weights: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=1e-3, momentum=0.9)


UPDATES = """
import _thread, os, signal, subprocess, sys, threading, time, torch
import torch.multiprocessing
from test_late_errors import sgd, update, weights_of
from against_cpu import assert_same

weights, on_cpu = weights_of("tenon"), weights_of("cpu")
optimizer, optimizer_on_cpu = sgd(weights), sgd(on_cpu)

def check(number):
    update(on_cpu, optimizer_on_cpu, number)
    assert_same(weights, on_cpu, rtol=1e-6, atol=1e-6)
"""


def run_updates(code: str, mode: str, cache: Path) -> str:
    """What the code prints; the cache is empty, so every plan has to be asked for."""
    environment = {"TENON_EXECUTE": mode, "TENON_CACHE_DIR": str(cache)}
    done = run(UPDATES + textwrap.dedent(code), **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "mode"),
    [("RuntimeError", "auto"), ("KeyboardInterrupt", "auto"), ("KeyboardInterrupt", "compiled")],
)
def test_a_builder_that_cannot_start_loses_no_update(error: str, mode: str, tmp_path: Path) -> None:
    code = """
    def cannot(*args, **kwargs):
        raise ERROR("can't start new thread")

    starts = [(threading.Thread, "start"), (subprocess.Popen, "__init__"), (os, "fork")]
    starts += [(os, "posix_spawn"), (os, "posix_spawnp"), (torch.multiprocessing.Process, "start")]
    saved = [getattr(owner, name) for owner, name in starts]
    for number in range(8):
        update(weights, optimizer, number)
        for owner, name in starts if number < 5 else []:
            setattr(owner, name, cannot)
        try:
            torch.tenon.synchronize()
        except KeyboardInterrupt:
            pass
        for (owner, name), start in zip(starts, saved):
            setattr(owner, name, start)
        check(number)
    print("right")
    """
    assert run_updates(code.replace("ERROR", error), mode, tmp_path) == "right"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "compiled"])
def test_an_interrupt_in_a_commit_loses_no_update(mode: str, tmp_path: Path) -> None:
    """Wherever the core enters the package's Python while it commits, an interrupt may be raised
    there."""
    code = """
    def raising_at(entry):
        left = entry
        def profile(frame, event, argument):
            nonlocal left
            if event == "call" and frame.f_globals["__name__"].startswith("torch_tenon"):
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt
        return profile

    for number in range(16):
        update(weights, optimizer, number)
        read, profile = weights[0].detach().cpu, raising_at(number // 4)
        try:
            sys.setprofile(profile)
            read()
            sys.setprofile(None)
        except KeyboardInterrupt:
            sys.setprofile(None)
        check(number)
    print("right")
    """
    assert run_updates(code, mode, tmp_path) == "right"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "compiled"])
def test_an_interrupt_from_the_keyboard_loses_no_update(mode: str, tmp_path: Path) -> None:
    """It comes while calls are recorded, while they run, or right after."""
    code = """
    main = threading.get_ident()
    heavy = torch.rand(300, 300).to("tenon")
    for number in range(12):
        def later():
            time.sleep(0.001 * number)
            signal.pthread_kill(main, signal.SIGINT)

        update(weights, optimizer, number)
        try:
            if number % 3 == 0:
                signal.raise_signal(signal.SIGINT)
            elif number % 3 == 1:
                _thread.interrupt_main()
            else:
                threading.Thread(target=later).start()
                for _ in range(4):
                    heavy = heavy @ heavy / 300
                weights[1].detach().cpu()
            time.sleep(30)
            print("no interrupt")
        except KeyboardInterrupt:
            pass
        check(number)
    print("right")
    """
    assert run_updates(code, mode, tmp_path) == "right"
