"""How the device is entered in a library's lists, and what happens where there is no such list."""

import types
from pathlib import Path

import pytest
import torch
from fresh_process import output

from torch_tenon import frameworks
from torch_tenon.frameworks.choice import device_instead_of, enter_in_list, is_only_accelerator


def knows(device: str) -> bool:
    return device in ("cuda", "mps")


def test_a_list_that_is_a_constant_of_a_function() -> None:
    assert knows("cuda") and not knows("tenon")
    enter_in_list(knows, ("cuda", "mps"))
    assert knows("tenon") and knows("mps") and not knows("xpu")
    with pytest.raises(LookupError, match=r"knows has no list \('cuda', 'mps'\)"):
        enter_in_list(knows, ("cuda", "mps"))


def test_what_a_library_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_instead_of(torch.device("cuda", 1)) == torch.device("cuda", 1)
    assert device_instead_of(torch.device("cpu")) == torch.device("tenon", 0)
    torch.tenon.set_device(1)
    assert device_instead_of(torch.device("cpu")) == torch.device("tenon", 1)
    assert is_only_accelerator()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not is_only_accelerator()


@pytest.mark.parametrize("name", frameworks.PLACES)
def test_another_version_is_a_warning_and_no_error(name: str) -> None:
    module = types.ModuleType(name)
    with pytest.warns(UserWarning, match="does not know this version") as said:
        frameworks.entries()[name](module)
    (warning,) = said
    assert name.partition(".")[0] in str(warning.message)


FIRST = """
import sys
import early
assert early.answer == "tenon", early.answer
assert not hasattr(early.__spec__, "_action") and not early.__spec__._initializing
try:
    import failing
except ValueError:
    pass
assert "failing" not in sys.modules
"""


def test_a_module_that_imports_torch_itself_is_entered_when_it_is_there(tmp_path: Path) -> None:
    """Nobody who types `import lightning` has imported torch before."""
    late = """
        import torch
        from torch_tenon.frontends.after_import import after_import

        def act(module):
            module.answer = "tenon"

        after_import({__name__: act})
        """
    body = "\n".join(line[8:] for line in late.splitlines())
    (tmp_path / "early.py").write_text(body + "\nanswer = 'cpu'\n")
    (tmp_path / "failing.py").write_text(body + "\nraise ValueError\n")
    output(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{FIRST}")


@pytest.mark.parametrize(
    ("library", "code"),
    [
        (
            "accelerate",
            "import accelerate; print(accelerate.Accelerator(mixed_precision='fp16').device)",
        ),
        ("accelerate", "from accelerate.state import PartialState; print(PartialState().device)"),
        ("lightning", "import lightning; print(lightning.Fabric(devices=1).device)"),
        ("lightning", "from lightning.fabric import Fabric; print(Fabric(devices=1).device)"),
        ("lightning_fabric", "import lightning_fabric as l; print(l.Fabric(devices=1).device)"),
        (
            "pytorch_lightning",
            "from pytorch_lightning import Trainer; print(Trainer(devices=1).strategy.root_device)",
        ),
        (
            "accelerate",
            "from transformers import TrainingArguments as A; print(A('x', bf16=True).device)",
        ),
    ],
)
def test_the_first_import_of_a_program(library: str, code: str, tmp_path: Path) -> None:
    pytest.importorskip(library, reason="`make test-frameworks` installs it")
    code = f"import os; os.chdir({str(tmp_path)!r}); {code}"
    assert output(code).splitlines()[-1] == "tenon:0"
