"""`torch.compile(backend="tenon")` of functions and models whose tensors are on the device."""

import pytest
import torch
from against_cpu import assert_same
from fresh_process import ASYNCHRONOUS_TARGET, REMOTE_TARGET, output, run

CLOSE = {"rtol": 1e-5, "atol": 1e-5}  # sums in another order


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _compiled(function):
    return torch.compile(function, backend="tenon")


@pytest.mark.slow
def test_forward_and_backward():
    def attention(x, w):
        return torch.nn.functional.gelu(x @ w).softmax(-1) * 2

    x, w = torch.randn(16, 32), torch.randn(32, 8)
    results = []
    for device in ("cpu", "tenon"):
        a = x.detach().to(device).requires_grad_()
        b = w.detach().to(device).requires_grad_()
        out = (_compiled(attention) if device == "tenon" else attention)(a, b)
        out.square().sum().backward()
        results.append((out.detach(), a.grad, b.grad))
    assert all(t.device.type == "tenon" for t in results[1])
    assert_same(results[1], results[0], **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_attention(dtype, masked, dynamic):
    def attend(q, k, v, mask):
        heads = [t.unflatten(-1, (2, -1)).transpose(1, 2) for t in (q, k, v)]
        scaled_dot_product_attention = torch.nn.functional.scaled_dot_product_attention
        out = scaled_dot_product_attention(*heads, mask, is_causal=not masked)
        return out.transpose(1, 2).flatten(2)

    operands = [torch.randn(2, 10, 16, dtype=dtype) for _ in range(3)]
    mask = torch.randn(10, 10, dtype=dtype) if masked else None
    results = []
    for device in ("cpu", "tenon"):
        q, k, v = (t.detach().to(device).requires_grad_() for t in operands)
        run = torch.compile(attend, backend="tenon", dynamic=dynamic) if device != "cpu" else attend
        out = run(q, k, v, None if mask is None else mask.to(device))
        out.square().sum().backward()
        results.append((out.detach(), q.grad, k.grad, v.grad))
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else CLOSE
    assert_same(results[1], results[0], **close)


@pytest.mark.slow
def test_training_steps():
    def train(device):
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
        ).to(device)
        step = _compiled(model) if device == "tenon" else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.randn(5, 8, generator=torch.Generator().manual_seed(2)).to(device)
        for _ in range(3):
            optimizer.zero_grad()
            step(data).square().mean().backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    assert_same(train("tenon"), train("cpu"), **CLOSE)


def test_writes_to_an_input_and_a_view_of_it():
    def grow(x):
        x.add_(1)
        return torch.arange(4, device=x.device) * 2, x.t()

    x = torch.zeros(2, 3, device="tenon")
    counted, turned = _compiled(grow)(x)
    assert counted.tolist() == [0, 2, 4, 6] and counted.device.type == "tenon"
    assert x.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert turned.data_ptr() == x.data_ptr() and turned.shape == (3, 2)
    x.fill_(5)
    assert turned.tolist() == [[5, 5]] * 3


@pytest.mark.slow
def test_sizes_at_run_time():
    compiled = torch.compile(lambda x: (x.exp() + 1).sum(0), backend="tenon", dynamic=True)
    for n in (3, 7, 50):
        x = torch.randn(n, 4)
        assert_same(compiled(x.to("tenon")), (x.exp() + 1).sum(0), **CLOSE)


def test_reads_and_writes_strided_views():
    def mix(x, y):
        y[:, 1:].copy_(x[::2].t() * 3)
        return y.sum(1)

    x, y = torch.randn(6, 4), torch.randn(4, 4)
    y_device = y.to("tenon")
    out = _compiled(mix)(x.to("tenon"), y_device)
    assert_same(out, mix(x, y))
    assert_same(y_device, y)


def test_memory_is_the_devices_own(nothing_leaked):
    compiled = _compiled(lambda x: x * 2 + 1)
    x = torch.ones(1 << 16, device="tenon")
    compiled(x)
    before = torch.tenon.memory_allocated()
    y = compiled(x)
    assert torch.tenon.memory_allocated() >= before + y.nbytes
    del x, y, compiled
    torch._dynamo.reset()


def test_index_out_of_range():
    compiled = _compiled(lambda x, i: x[i] * 2)
    x = torch.arange(4.0, device="tenon")
    assert compiled(x, torch.tensor([3, -4], device="tenon")).tolist() == [6, 0]
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        compiled(x, torch.tensor([0, 9], device="tenon"))
    assert compiled(x, torch.tensor([1, 2], device="tenon")).tolist() == [2, 4]


@pytest.mark.slow
def test_a_target_without_a_backend_runs_graphs_op_by_op():
    done = run(
        """
        import torch
        print(torch.compile(lambda x: x + 1, backend="tenon")(torch.ones(2, device="tenon")))
        """,
        TENON_TARGET=REMOTE_TARGET,
    )
    assert done.returncode == 0 and "tensor([2., 2.], device='tenon:0')" in done.stdout
    assert "runs by reference: the target 'remote' has no backend" in done.stderr


def test_what_cannot_be_compiled_runs_by_reference(caplog):
    def choose(x, y):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)) * y

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    for sign in (1, -1):
        got = _compiled(choose)(*(t.to("tenon") for t in (x.abs() * sign, y)))
        assert_same(got, choose(x.abs() * sign, y), **CLOSE)
    assert "runs by reference" in caplog.text


@pytest.mark.slow
def test_the_log_shows_the_generated_source(tmp_path):
    done = run(
        """
        import torch
        torch.compile(lambda x: x.exp() + 1, backend="tenon")(torch.ones(2, device="tenon"))
        """,
        TENON_LOG="code",
        TENON_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert done.returncode == 0, done.stderr
    assert "[tenon torch_tenon.code]" in done.stderr and "exp" in done.stderr


@pytest.mark.slow
def test_the_log_has_every_stage(tmp_path):
    done = run(
        """
        import torch
        torch.compile(lambda x: x.softmax(-1).cumsum(0) @ x.t(), backend="tenon")(
            torch.ones(4, 4, device="tenon")
        )
        """,
        TENON_LOG="program,schedule,memory,code",
        TENON_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert done.returncode == 0, done.stderr
    for stage in ("program", "schedule", "memory", "code"):
        assert f"[tenon torch_tenon.{stage}]" in done.stderr


@pytest.mark.slow
def test_numbers_of_one_storage_on_the_host():
    code = """
        import torch
        from against_cpu import assert_same

        def step(x, a, b):
            a.add_(1)
            b.add_(2)
            return x * a + b

        x = torch.rand(5)
        compiled = torch.compile(step, backend="tenon")
        for _ in range(3):
            numbers = torch.rand(3)
            ours = numbers.clone()
            found = compiled(x.to("tenon"), ours[0], ours[2])
            assert_same([found, ours], [step(x, numbers[0], numbers[2]), numbers])
    """
    output(code, TENON_TARGET=ASYNCHRONOUS_TARGET)
