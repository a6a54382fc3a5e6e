"""The driver of products with few bits stays within its memory, for each number of rows."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest
import torch

from torch_tenon.targets.c_family.headers import template
from torch_tenon.targets.cpu.autotune import INTERFACE
from torch_tenon.targets.cpu.compiler import default_compiler, headers
from torch_tenon.targets.cpu.products import NARROW

ROWS = range(1, 9)
# What computes a piece, its columns, and: four bits, without a sign, by rows.
PIECES = {
    "narrow_columns_int8": (64, "0, 0, 0"),
    "narrow_columns_uint8": (64, "0, 1, 0"),
    "narrow_rows_int8": (512, "0, 0, 1"),
    "narrow_rows_uint8": (512, "0, 1, 1"),
    "narrow_four_bits_16": (32, "1, 0, 0"),
    "narrow_four_bits_32": (64, "1, 0, 0"),
}
SANITIZED = ["-O0", "-w", "-fopenmp", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off"]
SANITIZED += ["-fsanitize=address,bounds"]
PROCESSORS = {"AVX512": "x86-64-v4", "AVX2": "x86-64-v3", "any": "x86-64-v2"}


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="it compiles for kinds of x86-64")
@pytest.mark.parametrize("capability", PROCESSORS)
def test_driver_stays_within_its_memory(capability: str, tmp_path: Path) -> None:
    here = torch.backends.cpu.get_cpu_capability()
    if list(PROCESSORS).index(capability) < list(PROCESSORS).index(here.replace("DEFAULT", "any")):
        pytest.skip(f"this processor has no {capability}")
    products, checks = [], []
    for piece, (width, kind) in PIECES.items():
        four_bits, unsigned, by_rows = kind.split(", ")
        checks.append(f"is_four_bits = {four_bits}, is_unsigned = {unsigned};")
        checks.append(f"by_rows = {by_rows}, block = {width};")
        for m in ROWS:
            products.append(f"NARROW_PRODUCT({piece}_{m}, {piece}, {m}, {width})")
            checks.append(f"check(multiply_{piece}_{m}, {m}, seed);")
    harness = template(Path(__file__).with_name("narrow_driver.c"))
    driver = INTERFACE + NARROW
    source = [*headers(driver), driver, *products, f"#define CHECKS {' '.join(checks)}", harness]
    (tmp_path / "driver.c").write_text("\n".join(source))
    words = default_compiler().toolchain.words
    files = [str(tmp_path / "driver.c"), "-o", str(tmp_path / "driver"), "-lm"]
    flags = [*SANITIZED, f"-march={PROCESSORS[capability]}"]
    subprocess.run([*words, *flags, *files], check=True)
    found = subprocess.run([str(tmp_path / "driver")], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
