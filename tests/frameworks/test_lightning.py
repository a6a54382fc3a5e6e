"""Lightning's Trainer and Fabric choose the device, and train there as they do on the CPU."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from against_cpu import assert_on_device, assert_same

lightning = pytest.importorskip("lightning", reason="`make test-frameworks` installs it")

Data = torch.utils.data.Dataset
TENON = torch.device("tenon", 0)

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
pytestmark = pytest.mark.filterwarnings("ignore:.*num_workers.*")


def net() -> torch.nn.Module:
    torch.manual_seed(3)
    layers = (torch.nn.Linear(8, 16), torch.nn.GELU())
    return torch.nn.Sequential(*layers, torch.nn.Linear(16, 2))


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.losses: list[float] = []
        self.inner: set[torch.dtype] = set()

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        assert x.device == self.device
        hidden = self.net[0](x)
        self.inner.add(hidden.dtype)
        loss = torch.nn.functional.cross_entropy(self.net[1:](hidden), y)
        self.losses.append(loss.item())
        return loss

    def on_train_end(self) -> None:
        # Afterwards Lightning moves the parameters to the CPU.
        self.trained_on = {p.device for p in self.parameters()}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def fit(data: Data, folder: Path, resume: str | None = None, **options: Any) -> Any:
    """A classifier after a Trainer's `fit`, with that Trainer as `made_by`."""
    settings = {"max_epochs": 3, "devices": 1, "gradient_clip_val": 1.0, **options}
    trainer = lightning.Trainer(
        default_root_dir=folder, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **settings,
    )  # fmt: skip
    module = Classifier()
    module.made_by = trainer
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4), ckpt_path=resume)
    return module


def parameters(module: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach() for p in module.parameters()]


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("accelerator", ["tenon", "auto"])
def test_training_equals_the_cpus(
    one_batch_after_another: Data, tmp_path: Path, accelerator: str, accumulated: int
) -> None:
    options = {"accumulate_grad_batches": accumulated}
    want = fit(one_batch_after_another, tmp_path, accelerator="cpu", **options)
    assert want.made_by.strategy.root_device.type == "cpu"
    module = fit(one_batch_after_another, tmp_path, accelerator=accelerator, **options)
    assert module.made_by.strategy.root_device == TENON
    assert module.trained_on == {TENON}
    assert_same(module.losses, want.losses, rtol=1e-4)
    assert_same(parameters(module), parameters(want), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("precision", "dtype", "scaled"),
    [
        ("bf16-mixed", torch.bfloat16, False),
        ("16-mixed", torch.float16, True),
        ("bf16-true", torch.bfloat16, False),
        ("64-true", torch.float64, False),
    ],
)
def test_precision(
    one_batch_after_another: Data, tmp_path: Path, precision: Any, dtype: torch.dtype, scaled: bool
) -> None:
    want = fit(one_batch_after_another, tmp_path, accelerator="cpu")
    module = fit(one_batch_after_another, tmp_path, accelerator="tenon", precision=precision)
    scaler = getattr(module.made_by.precision_plugin, "scaler", None)
    assert (scaler is not None and scaler.is_enabled()) == scaled
    assert module.inner == {dtype} and module.trained_on == {TENON}
    assert_same(module.losses, want.losses, rtol=0.1)


# A plan rounds to float16 at other places than the reference, and which runs depends on time.
@pytest.mark.parametrize(("precision", "tolerance"), [("32-true", 1e-4), ("16-mixed", 1e-2)])
def test_a_run_that_is_resumed_goes_on_as_it_was(
    one_batch_after_another: Data, tmp_path: Path, precision: Any, tolerance: float
) -> None:
    options = {"accelerator": "tenon", "precision": precision}
    whole = fit(one_batch_after_another, tmp_path, **options)
    part = fit(one_batch_after_another, tmp_path, max_epochs=1, **options)
    checkpoint = str(tmp_path / "one.ckpt")
    part.made_by.save_checkpoint(checkpoint)
    resumed = fit(one_batch_after_another, tmp_path, checkpoint, **options)
    assert_same(part.losses + resumed.losses, whole.losses, rtol=tolerance)
    assert_same(parameters(resumed), parameters(whole), rtol=tolerance, atol=tolerance)


def test_which_devices() -> None:
    kind = lightning.pytorch.accelerators.AcceleratorRegistry.get("tenon")
    assert kind.auto_device_count() == 2
    assert [kind.parse_devices(d) for d in (1, "2", -1, [1], "1,")] == [
        [0], [0, 1], [0, 1], [1], [1]
    ]  # fmt: skip
    with pytest.raises(RuntimeError, match="device"):
        kind.parse_devices(3)


def test_a_strategy_of_another_device_is_an_error(
    one_batch_after_another: Data, tmp_path: Path
) -> None:
    strategy = lightning.pytorch.strategies.SingleDeviceStrategy(device="cpu")
    with pytest.raises(ValueError, match="the strategy computes on cpu"):
        fit(one_batch_after_another, tmp_path, accelerator="tenon", strategy=strategy)


@pytest.mark.parametrize("accelerator", ["tenon", "auto"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_fabric(one_batch_after_another: Data, accelerator: str, precision: Any) -> None:
    def train(**options: Any) -> tuple[list[float], list[torch.Tensor]]:
        fabric = lightning.Fabric(devices=1, **options)
        module = net()
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        module, optimizer = fabric.setup(module, optimizer)
        loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(one_batch_after_another, 4))
        losses = []
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(module(x), y)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, parameters(module)

    want = train(accelerator="cpu")
    got = train(accelerator=accelerator, precision=precision)
    assert_on_device(got[1])
    tolerance = 1e-4 if precision == "32-true" else 0.1
    assert_same(got, want, rtol=tolerance, atol=tolerance)


def test_its_older_name() -> None:
    older = pytest.importorskip("pytorch_lightning")
    trainer = older.Trainer(
        devices=1, logger=False, enable_checkpointing=False, precision="bf16-mixed"
    )
    assert trainer.strategy.root_device == TENON
    assert trainer.precision_plugin.device == "tenon"
