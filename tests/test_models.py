"""Models as they are written for any device: outputs, gradients and three steps equal the CPU's."""

import os

import pytest
import torch
from against_cpu import assert_same

os.environ.setdefault("HF_HUB_OFFLINE", "1")


class Attention(torch.nn.Module):
    """Multi-head attention with masks of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padding = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        padding[:, -1] = True
        causal = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        out, weights = self.attention(x, x, x, key_padding_mask=padding.float() * -1e9)
        plain, _ = self.attention(x, x, x, attn_mask=causal, is_causal=True, need_weights=False)
        return torch.cat([out, plain, weights.mean(-1, keepdim=True).expand_as(out)], -1)


class Recurrent(torch.nn.Module):
    """A bidirectional LSTM or GRU over sequences of several lengths."""

    def __init__(self, kind: type, packed: bool) -> None:
        super().__init__()
        self.cells = kind(16, 8, num_layers=2, bidirectional=True, batch_first=True)
        self.packed = packed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.packed:
            out, state = self.cells(x)
        else:
            lengths = torch.tensor([5, 2, 4])
            sequence = torch.nn.utils.rnn.pack_padded_sequence(
                x, lengths, batch_first=True, enforce_sorted=False
            )
            out, state = self.cells(sequence)
            out, _ = torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        last = state[0] if isinstance(state, tuple) else state
        return out.sum(1) + last.sum(0).repeat(1, 2)


class Block(torch.nn.Module):
    """A residual block."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(before, after, 3, stride, 1, bias=False),
            torch.nn.BatchNorm2d(after),
            torch.nn.ReLU(inplace=True),
            torch.nn.Conv2d(after, after, 3, 1, 1, bias=False),
            torch.nn.BatchNorm2d(after),
        )
        self.skip = torch.nn.Sequential(
            torch.nn.Conv2d(before, after, 1, stride, bias=False), torch.nn.BatchNorm2d(after)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def resnet() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(inplace=True),
        torch.nn.MaxPool2d(2),
        Block(4, 8, 2),
        Block(8, 8, 1),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 4),
    )


def encoder() -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2)


def transformer(name: str) -> torch.nn.Module:
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
    if name == "bert":
        config = transformers.BertConfig(
            **sizes, intermediate_size=64, hidden_dropout_prob=0, attention_probs_dropout_prob=0
        )
        return transformers.BertForMaskedLM(config)
    if name == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32,
            resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config)
    config = transformers.LlamaConfig(**sizes, intermediate_size=64, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config)


MODELS = {
    "transformer_encoder": (encoder, (3, 5, 16)),
    "multihead_attention": (Attention, (3, 5, 16)),
    "lstm": (lambda: Recurrent(torch.nn.LSTM, False), (3, 5, 16)),
    "lstm_packed": (lambda: Recurrent(torch.nn.LSTM, True), (3, 5, 16)),
    "gru": (lambda: Recurrent(torch.nn.GRU, False), (3, 5, 16)),
    "gru_packed": (lambda: Recurrent(torch.nn.GRU, True), (3, 5, 16)),
    "rnn_packed": (lambda: Recurrent(torch.nn.RNN, True), (3, 5, 16)),
    "resnet": (resnet, (4, 1, 16, 16)),
    "bert": (lambda: transformer("bert"), None),
    "gpt2": (lambda: transformer("gpt2"), None),
    "llama": (lambda: transformer("llama"), None),
}


def train(name: str, device: str) -> dict:
    """The model's outputs, first gradients, parameters and buffers after three steps."""
    make, sizes = MODELS[name]
    torch.manual_seed(0)
    model = make().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = {"outputs": [], "gradients": {}}
    for step in range(3):
        optimizer.zero_grad()
        if sizes is None:
            tokens = (torch.arange(24).view(2, 12) * (step + 7)) % 64
            mask = torch.ones(2, 12, dtype=torch.int64)
            mask[1, 9:] = 0
            out = model(tokens.to(device), attention_mask=mask.to(device), labels=tokens.to(device))
            out, loss = out.logits, out.loss
        else:
            x = torch.linspace(-1, 1, torch.Size(sizes).numel()).view(sizes).mul(step + 1).sin()
            out = model(x.to(device))
            loss = out.pow(2).mean()
        loss.backward()
        if step == 0:
            found["gradients"] = {
                k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None
            }
        optimizer.step()
        found["outputs"] += [out.detach(), loss.detach()]
    model.eval()
    found["state"] = {key: value.clone() for key, value in model.state_dict().items()}
    return found


@pytest.mark.parametrize("name", MODELS)
def test_three_steps_equal_the_cpu_s(name: str) -> None:
    on_device, on_cpu = train(name, "tenon"), train(name, "cpu")
    for part in ("outputs", "gradients", "state"):
        assert_same(on_device[part], on_cpu[part], rtol=2e-4, atol=2e-5)


def test_parameters_stay_the_same_objects() -> None:
    """What is tied stays tied, and an optimizer that knows the parameters goes on knowing them."""
    model = torch.nn.Sequential(torch.nn.Embedding(4, 3), torch.nn.Linear(3, 4))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    weight = model[0].weight
    weight.grad = torch.ones_like(weight)
    for device in ("tenon:0", "tenon:1", "cpu", "tenon:0"):
        model.to(device)
        assert model[0].weight is model[1].weight is weight
        assert weight.device == weight.grad.device == torch.device(device)
    expected = weight.detach() - 1
    optimizer.step()
    assert_same(weight, expected)
    plain = torch.ones(3)
    plain.data = torch.zeros(2, device="tenon:1")
    assert plain.device == torch.device("tenon:1") and (plain + 1).tolist() == [1, 1]


@pytest.mark.parametrize("name", ["transformer_encoder", "resnet", "lstm"])
def test_inference(name: str) -> None:
    make, sizes = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()
    x = torch.linspace(-1, 1, torch.Size(sizes).numel()).view(sizes)
    with torch.inference_mode():
        expected = model(x)
        assert_same(model.to("tenon")(x.to("tenon")), expected, rtol=1e-4, atol=1e-5)
        if name == "transformer_encoder":  # the fast path over nested tensors
            padding = torch.tensor([[0, 0, 0, 1, 1], [0] * 5, [0, 0, 0, 0, 1]]).bool()
            model.cpu()
            expected = model(x, src_key_padding_mask=padding)
            out = model.to("tenon")(x.to("tenon"), src_key_padding_mask=padding.to("tenon"))
            assert_same(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_generation() -> None:
    torch.manual_seed(0)
    model = transformer("llama").eval()
    tokens = torch.tensor([[1, 5, 9]])
    settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected = model.generate(tokens, **settings)
    assert model.to("tenon").generate(tokens.to("tenon"), **settings).tolist() == expected.tolist()


def test_data_parallel_style_copies() -> None:
    torch.manual_seed(0)
    model = resnet()
    first, second = resnet().to("tenon:0"), resnet().to("tenon:1")
    first.load_state_dict(model.state_dict())
    second.load_state_dict(first.state_dict())
    x = torch.linspace(-1, 1, 512).view(2, 1, 16, 16)
    expected = model(x)
    for copy in (first, second):
        device = next(copy.parameters()).device
        assert_same(copy(x.to(device)), expected, rtol=1e-4, atol=1e-5)
