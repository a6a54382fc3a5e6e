"""`python -m torch_tenon` is the command `tenon`."""

from torch_tenon.cli import app

app(prog_name="tenon")
