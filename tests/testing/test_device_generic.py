"""PyTorch's device-generic tests take the device, with PyTorch's knobs for such tests."""

import os
import re
from pathlib import Path

import pytest
from fresh_process import python
from torch.testing._internal import common_device_type, common_utils

from torch_tenon.testing import device_generic

HEAD = """
import torch
from torch.testing._internal import common_device_type as c, common_utils as u

bases = [b for b in c.device_type_test_bases if issubclass(b, c.PrivateUse1TestBase)]
assert [b.__name__ for b in bases] == ["TenonTestBase"]

class TestGeneric(u.TestCase):
    HARDWARE
    def test_sum(self, device):
        assert torch.ones(3, device=device).sum().item() == 3

    @c.dtypes(torch.float32, torch.bfloat16)
    def test_product(self, device, dtype):
        x = torch.full((2, 2), 2, dtype=dtype, device=device)
        self.assertEqual(x @ x, torch.full((2, 2), 8, dtype=dtype))

    def test_wrong(self, device):
        self.fail()
"""
TAIL = """
bases[0].set_test_configs(test_exclusions={"TestGeneric": ["test_wrong"]})
c.instantiate_device_type_tests(TestGeneric, globals(), only_for="tenon")

class TestHost(u.TestCase):
    def test_host(self):
        pass

if __name__ == "__main__":
    u.run_tests()
"""
needs_set_test_configs = pytest.mark.skipif(
    not hasattr(common_device_type.DeviceTypeTestBase, "set_test_configs"),
    reason="this PyTorch has no test configurations",
)


def passed_of(file: Path, text: str, *options: str) -> list[str]:
    file.write_text(text)
    # Where CI is set PyTorch's runner writes reports by a package of its own.
    env = {**os.environ, "CI": "", "TORCH_TEST_DEVICES": device_generic.__file__}
    done = python(str(file), "-v", *options, cwd=file.parent, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(re.findall(r"^(test_\w+).* \.\.\. ok$", done.stderr, re.MULTILINE))


@pytest.mark.slow
@needs_set_test_configs
def test_tests_run_on_the_device_and_some_are_excluded(tmp_path: Path) -> None:
    text = HEAD.replace("HARDWARE", "") + TAIL
    assert passed_of(tmp_path / "test_file.py", text) == [
        "test_host",
        "test_product_tenon_bfloat16",
        "test_product_tenon_float32",
        "test_sum_tenon",
    ]


@needs_set_test_configs
@pytest.mark.skipif(
    not hasattr(common_utils, "HardwareClassification"), reason="this PyTorch does not ask for it"
)
def test_those_for_any_accelerator_are_chosen(tmp_path: Path) -> None:
    mark = "hw_classification = u.HardwareClassification.ACCELERATOR"
    text = HEAD.replace("HARDWARE", mark) + TAIL
    options = ("--hw-classification", "ACCELERATOR")
    assert "test_host" not in passed_of(tmp_path / "test_file.py", text, *options)


@needs_set_test_configs
@pytest.mark.skipif(
    not hasattr(common_device_type, "requires_capabilities"),
    reason="this PyTorch does not ask for capabilities",
)
def test_capabilities_are_declared(tmp_path: Path) -> None:
    capabilities = """
    @c.requires_capabilities(c.Capability.dtype.bf16, c.Capability.attention.flash_attention)
    def test_capable(self, device):
        pass
"""
    text = HEAD.replace("HARDWARE", "") + capabilities + TAIL
    assert "test_capable_tenon" in passed_of(tmp_path / "test_file.py", text)
