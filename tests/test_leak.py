"""Training keeps nothing: the full run is `python tests/soak.py --steps 10000`."""

from pathlib import Path

import pytest
from fresh_process import output


@pytest.mark.slow
def test_a_thousand_steps_hold_what_a_hundred_did() -> None:
    soak = Path(__file__).with_name("soak.py")
    text = output(
        "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], "
        "run_name='__main__')",
        str(soak),
        "--steps",
        "1000",
    )
    assert "after 1,000 (+0)" in text
