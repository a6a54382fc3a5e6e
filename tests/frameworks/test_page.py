"""What docs/frameworks.md says to type works."""

import re
from pathlib import Path

import pytest
from fresh_process import output

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
BLOCKS = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS, ids=["accelerate", "lightning"])
def test_a_block_of_the_page(block: str, tmp_path: Path) -> None:
    pytest.importorskip(re.match(r"import (\w+)", block)[1], reason="`make test-frameworks`")
    output(block, TENON_CACHE_DIR=str(tmp_path))
