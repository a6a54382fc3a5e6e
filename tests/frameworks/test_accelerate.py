"""accelerate chooses the device by itself, and trains there as it does on the CPU."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from against_cpu import assert_on_device, assert_same
from fresh_process import output

accelerate = pytest.importorskip("accelerate", reason="`make test-frameworks` installs it")

Data = torch.utils.data.Dataset


def model(dropout: float = 0.0) -> torch.nn.Module:
    torch.manual_seed(3)
    layers = (torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Dropout(dropout))
    return torch.nn.Sequential(*layers, torch.nn.Linear(16, 2))


@dataclasses.dataclass
class Run:
    """A training loop as accelerate's documentation has it."""

    data: Data
    options: dict[str, Any]
    dropout: float = 0.0

    def __post_init__(self) -> None:
        self.accelerator = accelerate.Accelerator(**self.options)
        net = model(self.dropout)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        loader = torch.utils.data.DataLoader(self.data, batch_size=4)
        prepared = self.accelerator.prepare(net, optimizer, loader)
        self.model, self.optimizer, self.loader = prepared

    def epochs(self, count: int) -> list[float]:
        losses = []
        for _ in range(count):
            for x, y in self.loader:
                with self.accelerator.accumulate(self.model):
                    loss = torch.nn.functional.cross_entropy(self.model(x), y)
                    self.accelerator.backward(loss)
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                losses.append(loss.item())
        return losses

    def parameters(self) -> list[torch.Tensor]:
        return [p.detach() for p in self.accelerator.unwrap_model(self.model).parameters()]


def train(data: Data, epochs: int = 3, **options: Any) -> tuple[list[float], list[torch.Tensor]]:
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    run = Run(data, options)
    return run.epochs(epochs), run.parameters()


@pytest.mark.parametrize("accumulated", [1, 2])
def test_training_equals_the_cpus(one_batch_after_another: Data, accumulated: int) -> None:
    options = {"gradient_accumulation_steps": accumulated}
    want = train(one_batch_after_another, cpu=True, **options)
    assert want[1][0].device.type == "cpu"
    losses, parameters = train(one_batch_after_another, **options)
    assert_on_device(parameters)
    assert_same((losses, parameters), want, rtol=1e-4, atol=1e-5)


def test_the_device_is_chosen_unless_the_cpu_is_named() -> None:
    assert accelerate.PartialState().device == torch.device("tenon", 0)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    assert accelerate.Accelerator(cpu=True).device == torch.device("cpu")


def test_accelerates_own_variable_names_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "tenon:1")
    assert accelerate.Accelerator().device == torch.device("tenon", 1)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.half)])
def test_mixed_precision(one_batch_after_another: Data, precision: str, dtype: torch.dtype) -> None:
    want = train(one_batch_after_another, cpu=True)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    run = Run(one_batch_after_another, {"mixed_precision": precision})
    inner = []
    run.accelerator.unwrap_model(run.model)[1].register_forward_hook(
        lambda module, args, result: inner.append(result.dtype)
    )
    losses = run.epochs(3)
    assert set(inner) == {dtype}
    scaler = run.accelerator.scaler
    assert (scaler is not None and scaler.is_enabled()) == (precision == "fp16")
    assert_on_device(run.parameters())
    assert_same((losses, run.parameters()), want, rtol=0.1, atol=0.05)


def test_a_step_that_overflows_float16_is_left_out(one_batch_after_another: Data) -> None:
    run = Run(one_batch_after_another, {"mixed_precision": "fp16"})
    before = [p.clone() for p in run.parameters()]
    x, y = next(iter(run.loader))
    run.accelerator.backward(torch.nn.functional.cross_entropy(run.model(x), y) * 1e4)
    run.optimizer.step()
    assert run.accelerator.optimizer_step_was_skipped
    assert_same(run.parameters(), before)


# A plan rounds to float16 at other places than the reference, and which runs depends on time.
@pytest.mark.parametrize(("precision", "tolerance"), [("no", 1e-4), ("fp16", 1e-2)])
def test_a_run_that_is_resumed_goes_on_as_it_was(
    one_batch_after_another: Data, tmp_path: Path, precision: str, tolerance: float
) -> None:
    options = {"mixed_precision": precision}
    run = Run(one_batch_after_another, options, dropout=0.5)
    run.epochs(1)
    run.accelerator.save_state(str(tmp_path / "checkpoint"))
    losses = run.epochs(2)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    resumed = Run(one_batch_after_another, options, dropout=0.5)
    torch.manual_seed(99)
    resumed.accelerator.load_state(str(tmp_path / "checkpoint"))
    assert_same(resumed.epochs(2), losses, rtol=tolerance)
    assert_same(resumed.parameters(), run.parameters(), rtol=tolerance, atol=tolerance)


def test_a_checkpoint_of_the_cpu_is_resumed_on_the_device(
    one_batch_after_another: Data, tmp_path: Path
) -> None:
    run = Run(one_batch_after_another, {"cpu": True})
    run.epochs(1)
    run.accelerator.save_state(str(tmp_path / "checkpoint"))
    losses = run.epochs(1)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    resumed = Run(one_batch_after_another, {})
    resumed.accelerator.load_state(str(tmp_path / "checkpoint"))
    assert_same(resumed.epochs(1), losses, rtol=1e-4)
    assert_on_device(resumed.parameters())


def test_memory_for_device_maps() -> None:
    free = accelerate.utils.get_max_memory()
    assert [key for key in free if isinstance(key, int)] == [0, 1]
    assert all(0 < free[i] <= torch.tenon.mem_get_info(i)[1] for i in (0, 1))
    given = accelerate.utils.get_max_memory({1: "1MiB", 0: 5, "cpu": "2MiB"})
    assert given == {0: 5, 1: 1 << 20, "cpu": 2 << 20} and list(given) == [0, 1, "cpu"]
    with pytest.raises(RuntimeError, match="device"):
        accelerate.utils.get_max_memory({2: 1})


def test_a_model_that_two_devices_share(one_batch_after_another: Data) -> None:
    net = model().eval()
    want = net(one_batch_after_another.tensors[0])
    assert accelerate.infer_auto_device_map(net) == {"": 0}
    net = accelerate.dispatch_model(net, {"0": 0, "1": 0, "2": 0, "3": 1})
    assert [p.device for p in net.parameters()] == [torch.device("tenon", i) for i in (0, 0, 1, 1)]
    assert_same(net(one_batch_after_another.tensors[0]), want, rtol=1e-5, atol=1e-6)


RANKS = """
import accelerate, torch
accelerator = accelerate.Accelerator()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.arange(32.).reshape(8, 4) / 32
model, optimizer, loader = accelerator.prepare(
    model, optimizer, torch.utils.data.DataLoader(data, batch_size=2)
)
for x in loader:
    accelerator.backward(model(x).square().mean())
    optimizer.step()
    optimizer.zero_grad()
weights = [p.detach().cpu() for p in model.parameters()]
alike = accelerator.gather(weights[0].to(accelerator.device)).cpu()
assert torch.equal(alike[0], alike[1])
if accelerator.is_main_process:
    print(accelerator.num_processes, x.device.type, next(model.parameters()).device.type)
    print([round(v, 5) for w in weights for v in w.flatten().tolist()])
accelerator.end_training()
"""


LAUNCH = "import sys; from torch.distributed.run import main; main(sys.argv[1:])"


def test_ranks_of_a_launcher_are_a_group(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    launch = (LAUNCH, "--standalone", "--nproc-per-node", "2", str(script))
    devices, weights = output(*launch).splitlines()
    assert devices == "2 tenon tenon"
    on_cpu = output(*launch, ACCELERATE_USE_CPU="true").splitlines()
    assert on_cpu[0] == "2 cpu cpu"
    assert_same(json.loads(weights), json.loads(on_cpu[1]), rtol=1e-4, atol=2e-5)
