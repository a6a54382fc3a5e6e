"""Builds the C++ core, `torch_tenon._C`; everything else is in pyproject.toml."""

import os
from pathlib import Path

# The device cannot be loaded while it is being built.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).parent

# `make` builds the extension in place, where ninja rebuilds what changed, and installs the rest.
IN_PLACE = os.environ.get("TORCH_TENON_BUILT_IN_PLACE") == "1"

setup(
    ext_modules=[]
    if IN_PLACE
    else [
        CppExtension(
            "torch_tenon._C",
            sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/**/*.cpp")),
            include_dirs=[str(ROOT / "csrc")],
            extra_compile_args=["-O2", "-g0", "-Wall", "-fvisibility=hidden", "-fopenmp"],
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
