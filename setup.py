"""Builds the C++ core with the cpu target's kernels, and the libraries beside it: targets, runtime.

Everything else is in pyproject.toml, but for what depends on the PyTorch that it is built against:
the distribution requires that release and no other, and its version names it.
"""

import functools
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

# The device cannot be loaded while it is being built.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch
import yaml
from setuptools import Command, Extension, setup
from torch.utils.cpp_extension import (
    BuildExtension,
    CppExtension,
    get_cxx_compiler,
    include_paths,
)

ROOT = Path(__file__).parent

# A build for some accelerator is marked after a plus and is the same release.
RELEASE = torch.__version__.partition("+")[0]
PINNED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["torch-tenon"]["dependencies"]

# The core, and the kernels that a target has of its own: one extension.
SOURCES = ["csrc/**/*.cpp", "torch_tenon/targets/*/csrc/*.cpp"]

# A target behind `include/tenon.h` is a library of its own, which is not linked with the core.
LIBRARIES = ["torch_tenon/targets/*/native"]

# What multiplies in exported programs by another library.
PRODUCTS = Path("torch_tenon/targets/cpu/onednn")

# `make` builds the extension in place, where ninja rebuilds what changed, and installs the rest.
IN_PLACE = os.environ.get("TORCH_TENON_BUILT_IN_PLACE") == "1"

# What is compiled once and included in every file that may use PyTorch.
HEADER = "precompiled.h"
WITHOUT_PYTORCH = Path("csrc/runtime")

# GCC looks for memory to use again each time that it has twice as much, and reads 250 MB of what
# was compiled once. Below so many kB it does not, which saves a tenth of its time, where there is
# memory for it. Clang says that it has no such option.
KEEP_MEMORY = ("--param", "ggc-min-heapsize=2097152")
ENOUGH_MEMORY = 12 << 30  # bytes, for two compilers at once and what else is open

# Files are compiled together, so many lines at once: what they include of PyTorch takes longer than
# they do. Those of one folder are, and those that read the same one of these sets of headers, each
# of which takes a processor three to five seconds. One that would reach those after it is the last.
LINES_AT_ONCE = 2400
REACHES_OTHERS = re.compile("^(#define|using namespace at)", re.MULTILINE)
INCLUDES = re.compile('^#include ([<"])([^>"]+)', re.MULTILINE)
SLOW_TO_READ = {
    "python": ("pybind11/", "torch/csrc/utils/pybind.h", "torch/csrc/Exceptions.h"),
    "distributed": ("torch/csrc/distributed/",),
    "all_ops": ("ATen/ATen.h", "ATen/autocast_mode.h"),
}


def has_enough_memory() -> bool:
    """Whether the compiler need not look for memory to use again."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >= ENOUGH_MEMORY


def build_library(sources: Path, folder: Path) -> None:
    """Builds a target's library in `folder`, where it is not newer than its sources.

    What it is built of is the interface and C++: it runs with any version of PyTorch, or none.
    """
    result = folder / f"libtenon_{sources.parent.name}.so"
    read = [*sources.iterdir(), ROOT / "include" / "tenon.h", Path(__file__)]
    if result.exists() and all(p.stat().st_mtime < result.stat().st_mtime for p in read):
        return
    folder.mkdir(parents=True, exist_ok=True)
    made = result.with_suffix(f".{os.getpid()}")
    command = [
        *shlex.split(get_cxx_compiler()),
        *("-std=c++17", "-O2", "-g0", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden"),
        *("-shared", f"-I{ROOT / 'include'}", *map(str, sorted(sources.glob("*.cpp")))),
        *("-o", str(made), "-ldl", "-pthread"),
    ]
    subprocess.run(command, check=True)
    made.replace(result)  # a process that has the old one open keeps it


def build_products(sources: Path, folder: Path) -> None:
    """Builds what has oneDNN multiply in exported programs, where oneDNN's headers are: those of
    version 2. Elsewhere there is none, and the programs' own code multiplies."""
    result = folder / "libtenon_onednn.so"
    compiler = shlex.split(get_cxx_compiler())
    check = "#include <oneapi/dnnl/dnnl.hpp>\nstatic_assert(DNNL_VERSION_MAJOR == 2);\n"
    tried = [*compiler, "-std=c++17", "-fsyntax-only", "-xc++", "-"]
    if subprocess.run(tried, input=check.encode(), capture_output=True).returncode != 0:
        result.unlink(missing_ok=True)
        print("no headers of oneDNN 2 (apt install libdnnl-dev): libtenon_onednn.so is left out")
        return
    interfaces = [ROOT / "include" / "tenon.h", sources.parent / "templates" / "matmul.h"]
    read = [*sources.iterdir(), *interfaces, Path(__file__)]
    if result.exists() and all(p.stat().st_mtime < result.stat().st_mtime for p in read):
        return
    folder.mkdir(parents=True, exist_ok=True)
    made = result.with_suffix(f".{os.getpid()}")
    command = [
        *(*compiler, "-std=c++17", "-O2", "-g0", "-Wall", "-Wextra", "-fPIC"),
        *("-fvisibility=hidden", "-shared", "-s", f"-I{ROOT / 'include'}", f"-I{sources.parent}"),
        *map(str, sorted(sources.glob("*.cpp"))),
        *("-o", str(made), "-ldnnl", "-lgomp", "-pthread"),
    ]
    if subprocess.run(command).returncode != 0:
        result.unlink(missing_ok=True)  # the headers are there, and the library is not
        return
    made.replace(result)


def build_runtime(build: Path, folder: Path) -> None:
    """Builds the runtime by itself, `libtenon_rt.so`, where its sources are newer.

    Programs that were exported run by it, without PyTorch. Its Makefile has the flags.
    """
    made = build.resolve() / "runtime" / "libtenon_rt.so"
    sources = ROOT / "csrc" / "runtime"
    compiler = f"CXX={get_cxx_compiler()}"
    subprocess.run(
        ["make", "-s", "-C", str(sources), f"OUT={made.parent}", compiler, str(made)], check=True
    )
    result = folder / made.name
    if result.exists() and result.read_bytes() == made.read_bytes():
        return
    folder.mkdir(parents=True, exist_ok=True)
    copy = result.with_suffix(f".{os.getpid()}")
    shutil.copy(made, copy)
    copy.replace(result)  # a process that has the old one open keeps it


@functools.cache
def headers_of(path: Path) -> frozenset[str]:
    """What a file includes of others' headers, by itself or through ours."""
    found = set()
    for kind, name in INCLUDES.findall(path.read_text()):
        if kind == "<":
            found.add(name)
            continue
        places = [path.parent, ROOT / "csrc" / "pytorch", ROOT / "csrc", ROOT / "include", ROOT]
        ours = next((place / name for place in places if (place / name).exists()), None)
        if ours is not None:
            found |= headers_of(ours)
    return frozenset(found)


def room_of(path: Path) -> str:
    """Which files this one is compiled with."""
    for room, slow in SLOW_TO_READ.items():
        if any(name.startswith(slow) for name in headers_of(ROOT / path)):
            return room
    return path.parent.as_posix()


def together(sources: list[str], folder: Path) -> list[str]:
    """Files that each include several of the sources."""
    rooms: dict[str, list[Path]] = {}
    reaches = {
        path: REACHES_OTHERS.search((ROOT / path).read_text()) for path in map(Path, sources)
    }
    for path in sorted(reaches, key=lambda path: reaches[path] is not None):
        rooms.setdefault(room_of(path), []).append(path)
    made = []
    for room, paths in rooms.items():
        batches: list[list[Path]] = []
        left = 0
        for path in paths:
            lines = (ROOT / path).read_text().count("\n")
            if lines > left:
                batches.append([])
                left = LINES_AT_ONCE
            batches[-1].append(path)
            left = 0 if reaches[path] else left - lines
        # They are compiled in the order of their names.
        turn = "1" if room in SLOW_TO_READ else "2"
        for batch in batches:
            result = folder / turn / ("_".join(batch[0].with_suffix("").parts) + ".cpp")
            result.parent.mkdir(parents=True, exist_ok=True)
            head = [] if batch[0].is_relative_to(WITHOUT_PYTORCH) else [HEADER]
            named = [*head, *((ROOT / path).as_posix() for path in batch)]
            text = "".join(f'#include "{name}"\n' for name in named)
            if not result.exists() or result.read_text() != text:
                result.write_text(text)
            made.append(os.path.relpath(result, ROOT))
    return made


class Build(BuildExtension):
    """Builds the extension, the targets' libraries and the runtime.

    It writes beside them what the extension is for (torch_tenon/loading.py) and what is in the
    manifest, for `import torch` to read sooner than YAML (torch_tenon/ops/manifest.py).
    """

    def run(self) -> None:
        # Beside the header that is compiled first, which keeps one processor busy.
        with ThreadPoolExecutor(max_workers=1) as beside:
            libraries = beside.submit(self._build_libraries)
            super().run()
            libraries.result()
        record = {
            "torch": torch.__version__,
            "python": ".".join(platform.python_version_tuple()[:2]),
        }
        text = (ROOT / "torch_tenon" / "ops" / "manifest.yaml").read_bytes()
        manifest = {"of": hashlib.sha256(text).hexdigest(), "rows": yaml.safe_load(text)}
        for extension in self.extensions:
            folder = Path(self.get_ext_fullpath(extension.name)).parent
            (folder / "built_for.json").write_text(json.dumps(record) + "\n")
            (folder / "ops").mkdir(exist_ok=True)
            (folder / "ops" / "manifest.json").write_text(json.dumps(manifest) + "\n")

    def _build_libraries(self) -> None:
        for extension in self.extensions:
            folder = Path(self.get_ext_fullpath(extension.name)).parent
            for sources in sorted(p for place in LIBRARIES for p in ROOT.glob(place)):
                build_library(sources, folder.parent / sources.parent.relative_to(ROOT))
            build_products(ROOT / PRODUCTS, folder.parent / PRODUCTS.parent)
            build_runtime(Path(self.build_temp), folder / "runtime")

    def build_extension(self, extension: Extension) -> None:
        folder = Path(self.build_temp).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        extension.sources = together(extension.sources, folder / "together")
        self._precompile(extension, folder / f"{HEADER}.gch")
        # The compiler takes the first of the header and what was made of it that it finds.
        extension.include_dirs.insert(0, str(folder))
        super().build_extension(extension)

    def _precompile(self, extension: Extension, result: Path) -> None:
        """Compiles the header with the options of the files. A compiler that takes it for another
        program's reads the header itself."""
        command = [
            *self.compiler.compiler_so,
            *(f"-I{place}" for place in [*extension.include_dirs, *self.compiler.include_dirs]),
            *(f"-D{name}" for name, _ in extension.define_macros),
            *extension.extra_compile_args,
            *("-x", "c++-header", str(ROOT / "csrc" / HEADER), "-o", str(result)),
        ]
        made_by = result.with_suffix(".made_by")
        text = "\n".join([*command, torch.__version__, (ROOT / "csrc" / HEADER).read_text()])
        if not (result.exists() and made_by.exists() and made_by.read_text() == text):
            subprocess.run(command, check=True)
            made_by.write_text(text)


class BuildProducts(Command):
    """Builds the library for oneDNN in place, whose headers may come after all else is built."""

    user_options: ClassVar[list[tuple[str, str, str]]] = []

    def initialize_options(self) -> None: ...

    def finalize_options(self) -> None: ...

    def run(self) -> None:
        build_products(ROOT / PRODUCTS, ROOT / PRODUCTS.parent)


setup(
    ext_modules=[]
    if IN_PLACE
    else [
        CppExtension(
            "torch_tenon._C",
            sorted(str(p.relative_to(ROOT)) for place in SOURCES for p in ROOT.glob(place)),
            # Kineto's headers name one another without their folder.
            include_dirs=[
                str(ROOT / "csrc"),
                str(ROOT / "csrc" / "pytorch"),
                str(ROOT / "include"),
                str(ROOT),
                *(str(Path(folder) / "kineto") for folder in include_paths()),
            ],
            # Random numbers are the same bits on every processor, and in generated kernels: those
            # are compiled with the last line's flags too. A root that sets errno has no vectors.
            extra_compile_args=[
                *("-O2", "-g0", "-Wall", "-fvisibility=hidden", "-fopenmp"),
                *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
                "-std=c++20",
                *(KEEP_MEMORY if has_enough_memory() else ()),
            ],
            # Some of PyTorch's headers would include all of its ops otherwise.
            define_macros=[("AT_PER_OPERATOR_HEADERS", None)],
        )
    ],
    cmdclass={"build_ext": Build, "build_products": BuildProducts},
    install_requires=[*PINNED, f"torch=={RELEASE}"],
    # Wheels for several releases differ in their names.
    options={"egg_info": {"tag_build": f"+torch{RELEASE}"}},
)
