"""The pages that people look at: `python -m tests.profiler.pages [FOLDER]`.

Profiles the demo and a small GPT with `tenon profile`, makes the page of a million events, and
prints of each its size and how long a browser takes until it can be used. Writes the pictures of
docs/profiling.md, of the GPT's page.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.browser import Browser
from tests.profiler.clicks import click_through, settle

ROOT = Path(__file__).parents[2]
TIMES = 5
GPT = """
import torch
from benchmarks.models import GPT
torch.manual_seed(0)
model = GPT(256, 128, 4, 4, 64).to("tenon")
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
text = torch.randint(0, 256, (200, 8, 65))
for batch in text:
    batch = batch.to("tenon")
    loss = model(batch[:, :-1], batch[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""


def profiled(script, page, folder, *arguments):
    """`tenon profile` of a script, in a folder."""
    command = [sys.executable, "-c", "from torch_tenon.cli import app; app()", "profile"]
    command += ["--output", str(page), str(script), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, cwd=folder, env=environment, stdout=subprocess.DEVNULL)


def looked_at(page, folder):
    """Opens a page a few times and clicks through it once; says how that went."""
    seconds = []
    for k in range(TIMES):
        with Browser(folder / f"{page.stem}-{k}") as browser:
            seconds.append(browser.open(page))
            if k == 0:
                click_through(browser)
            errors = browser.errors
    print(
        f"{page.name}: {page.stat().st_size / 1e6:.2f} MB, can be used after "
        f"{statistics.median(seconds):.2f} s (at most {max(seconds):.2f} s), "
        f"{len(errors)} errors in the console",
        flush=True,
    )


def pictures(page, folder):
    """The top of the page in light, timeline and kernels in dark, small enough for the docs."""
    for name, section in (("light", "header"), ("dark", "#timeline")):
        with Browser(folder / name, width=800, height=720, dark=name == "dark") as browser:
            browser.open(page)
            browser.evaluate(f"document.querySelector('{section}').scrollIntoView()")
            settle(browser)
            browser.picture(ROOT / "docs" / f"profile-{name}.png")


def main(folder):
    """All of it, in a folder."""
    folder = folder.resolve()
    profiled("examples/digits.py", folder / "demo.html", ROOT, "--epochs", "10")
    (folder / "gpt.py").write_text(GPT)
    profiled("gpt.py", folder / "gpt.html", folder)
    code = "import sys; from tests.profiler.long_run import page_of; page_of(int(sys.argv[1]))"
    for count in (100, 1_000_000):
        done = subprocess.run(
            [sys.executable, "-c", code, str(count)], check=True, cwd=ROOT, capture_output=True
        )
        (folder / f"events-{count}.html").write_bytes(done.stdout)
    for page in sorted(folder.glob("*.html")):
        looked_at(page, folder)
    pictures(folder / "gpt.html", folder)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
