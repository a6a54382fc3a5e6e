"""transformers' Trainer, pipeline and device maps choose the device, and give what the CPU gives.

The models have random weights, of configurations that are small; nothing comes from a hub.
"""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from against_cpu import assert_on_device, assert_same

import torch_tenon

pytest.importorskip("accelerate", reason="`make test-frameworks` installs it")
transformers = pytest.importorskip("transformers", reason="`make test-frameworks` installs it")

WORDS = ["<pad>", "<unk>", "the", "a", "dog", "cat", "sees", "hears", "runs", "sleeps", "and"]
TENON = torch.device("tenon", 0)


def model(dropout: float = 0.0) -> Any:
    torch.manual_seed(5)
    config = transformers.GPT2Config(
        vocab_size=len(WORDS), n_positions=32, n_embd=16, n_layer=2, n_head=2,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", unk_token="<unk>"
    )


def sentences() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(2)
    rows = torch.randint(2, len(WORDS), (16, 12), generator=generator)
    return [{"input_ids": row, "labels": row} for row in rows]


def trainer(folder: Path, dropout: float = 0.0, **options: Any) -> Any:
    arguments = {
        "output_dir": str(folder), "max_steps": 6, "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2, "save_steps": 3, "logging_steps": 1,
        "learning_rate": 1e-2, "report_to": [], "disable_tqdm": True, "seed": 7,
    }  # fmt: skip
    return transformers.Trainer(
        model=model(dropout),
        args=transformers.TrainingArguments(**arguments, **options),
        train_dataset=sentences(),
        eval_dataset=sentences()[:4],
    )


def losses(trained: Any) -> list[float]:
    return [entry["loss"] for entry in trained.state.log_history if "loss" in entry]


def parameters(trained: Any) -> list[torch.Tensor]:
    return [p.detach() for p in trained.model.parameters()]


def test_a_trainer_trains_as_on_the_cpu(tmp_path: Path) -> None:
    on_cpu = trainer(tmp_path / "cpu", use_cpu=True)
    on_cpu.train()
    assert on_cpu.args.device.type == on_cpu.model.device.type == "cpu"
    on_device = trainer(tmp_path / "tenon")
    assert on_device.args.device == on_device.accelerator.device == TENON
    assert on_device.args.train_batch_size == 2
    on_device.train()
    assert_on_device(parameters(on_device))
    assert_same(losses(on_device), losses(on_cpu), rtol=1e-3)
    assert_same(parameters(on_device), parameters(on_cpu), rtol=1e-3, atol=1e-3)
    evaluated = on_device.evaluate()["eval_loss"]
    assert evaluated == pytest.approx(on_cpu.evaluate()["eval_loss"], rel=1e-3)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.half)])
def test_mixed_precision(tmp_path: Path, precision: str, dtype: torch.dtype) -> None:
    on_cpu = trainer(tmp_path / "cpu", use_cpu=True)
    on_cpu.train()
    on_device = trainer(tmp_path / "tenon", **{precision: True})
    inner = []
    on_device.model.transformer.h[0].mlp.c_fc.register_forward_hook(
        lambda module, args, result: inner.append(result.dtype)
    )
    on_device.train()
    assert set(inner) == {dtype}
    scaler = on_device.accelerator.scaler
    assert (scaler is not None and scaler.is_enabled()) == (precision == "fp16")
    assert_on_device(parameters(on_device))
    assert_same(losses(on_device), losses(on_cpu), rtol=0.05)


def test_a_run_that_is_resumed_goes_on_as_it_was(tmp_path: Path) -> None:
    whole = trainer(tmp_path, dropout=0.2)
    whole.train()
    resumed = trainer(tmp_path, dropout=0.2)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert_same(losses(resumed), losses(whole), rtol=1e-4)
    assert_same(parameters(resumed), parameters(whole), rtol=1e-3, atol=1e-4)


def pipeline(**options: Any) -> Any:
    return transformers.pipeline(
        "text-generation", model=model().eval(), tokenizer=tokenizer(), **options
    )


@pytest.mark.parametrize(
    ("device", "index"), [(None, 0), (0, 0), (1, 1), ("tenon:1", 1), (torch.device("tenon:1"), 1)]
)
def test_a_pipeline_generates_as_on_the_cpu(device: Any, index: int) -> None:
    ask = {"max_new_tokens": 8, "do_sample": False}
    want = pipeline(device="cpu")("the dog sees", **ask)
    pipe = pipeline(device=device)
    assert pipe.device == pipe.model.device == torch.device("tenon", index)
    assert pipe("the dog sees", **ask) == want


def test_a_pipeline_is_on_the_cpu_where_that_is_named() -> None:
    assert pipeline(device=-1).device == pipeline(device="cpu").device == torch.device("cpu")


@pytest.mark.parametrize("device_map", ["auto", "sequential", "tenon", 1, {"": "tenon:1"}])
def test_device_maps(tmp_path: Path, device_map: Any) -> None:
    model().save_pretrained(tmp_path)
    load = transformers.AutoModelForCausalLM.from_pretrained
    ids = torch.tensor([[2, 4, 6]])
    options = {"max_new_tokens": 8, "do_sample": False}
    want = load(tmp_path).generate(ids, **options)
    loaded = load(tmp_path, device_map=device_map)
    assert_on_device(list(loaded.parameters()))
    assert_same(loaded.generate(ids.to(loaded.device), **options), want)


def test_a_pipeline_over_a_device_map(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    ask = {"max_new_tokens": 8, "do_sample": False}
    want = pipeline(device="cpu")("a cat", **ask)
    pipe = transformers.pipeline(
        "text-generation", model=str(tmp_path), tokenizer=tokenizer(), device_map="auto"
    )
    assert pipe.device == TENON
    assert pipe("a cat", **ask) == want


def test_experts_are_exported(tmp_path: Path) -> None:
    """A mixture of experts, whose products are an op of the library's own when it is traced."""
    torch.manual_seed(5)
    config = transformers.MixtralConfig(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, num_local_experts=3, use_cache=False,
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config).eval()
    words = torch.arange(14).reshape(2, 7)
    path = tmp_path / "experts.tenon"
    torch_tenon.export(model, (words,), path, kwargs={"return_dict": False})
    (found,) = torch_tenon.load(path)(words)
    with torch.no_grad():
        expected = model(words, return_dict=False)[0]
    assert_same(torch.as_tensor(found), expected, rtol=1e-5, atol=1e-6)


def test_rows_of_no_expert_are_zero(tmp_path: Path) -> None:
    """What the library's op makes of rows after the last expert's is what a program makes."""
    importlib.import_module("transformers.integrations.moe")  # enters the op

    class Products(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            return torch.ops.transformers.grouped_mm_fallback(x, y, ends)

    given = torch.randn(9, 4), torch.randn(3, 4, 5), torch.tensor([2, 2, 6], dtype=torch.int32)
    torch_tenon.export(Products().eval(), given, tmp_path / "products.tenon")
    found = torch.as_tensor(torch_tenon.load(tmp_path / "products.tenon")(*given))
    assert_same(found, Products()(*given), rtol=1e-5, atol=1e-6)
    assert not found[6:].any()
