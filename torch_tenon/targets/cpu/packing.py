"""Kernels as shared objects that need nothing of this process: for programs without Python.

An object is for one processor, or for a family of them. It has its own OpenMP entry points and the
generated driver of products (templates/alone.c). Its free ends are the variables `tenon_host` and
`tenon_products`.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch_tenon import config
from torch_tenon.compiler.backend import PackedCode, PackedKernel
from torch_tenon.compiler.cache import Cache, digest
from torch_tenon.compiler.kernel import Kernel
from torch_tenon.targets.c_family.headers import template
from torch_tenon.targets.cpu import toolchain
from torch_tenon.targets.cpu.autotune import DRIVER, INTERFACE
from torch_tenon.targets.cpu.compiler import TEMPLATES, headers
from torch_tenon.targets.cpu.handwritten import ENTRY
from torch_tenon.targets.cpu.toolchain import FLAGS, STRICT, X86_GCC, Toolchain
from torch_tenon.targets.target import CompileError, CompilerMissing

X86 = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
# Machines by the name that cross compilers have: what a program calls their processors, and flags.
MACHINES = {
    "x86_64-linux-gnu": ("x86-64-v2", ()),
    "aarch64-linux-gnu": ("aarch64", ()),
    "riscv64-linux-gnu": ("riscv64", ()),
}
_HOSTS = {"x86_64": "x86_64-linux-gnu", "AMD64": "x86_64-linux-gnu"}
# Which of a processor's features compiled code may use.
_FEATURES = ("avx", "sse", "ssse3", "fma", "f16c", "bmi", "popcnt", "movbe", "amx", "vaes", "gfni")
_COMMON = tuple(
    f for f in FLAGS if f not in ("-march=native", *X86_GCC, "-shared", "-w") and "width" not in f
)
_DRIVER_NAME = "tenon_generated_matmul"
# What an object shows of itself.
_VISIBLE = "{ global: tenon_host; tenon_products; k_*; local: *; };\n"


def pack(
    kernels: Sequence[Kernel], processors: Sequence[str], machine: str | None, own: Toolchain
) -> tuple[list[PackedCode], list[PackedKernel]]:
    """A shared object with all of the kernels for each processor.

    `own` is the compiler where no other `machine` is asked for. Raises ValueError for an unknown
    processor or machine, CompilerMissing, and CompileError.
    """
    host = _HOSTS.get(platform.machine(), f"{platform.machine()}-linux-gnu")
    if machine is not None and machine not in MACHINES:
        raise ValueError(f"machine={machine!r} is none of {', '.join(MACHINES)}")
    is_host = machine in (None, host)
    wanted = tuple(processors) or _usual(machine or host)
    for name in wanted:
        _require_known(name, machine or host, is_host)
    names = ["k_" + digest(k.source)[:16] for k in kernels]
    units = _units(dict(zip(names, kernels, strict=True)))
    codes = []
    for name in wanted:
        compiler = own if is_host else _cross(machine or host)
        label, flags = _flags(name)
        codes.append(PackedCode(label, _object(units, flags, compiler)))
    return codes, [PackedKernel(None, name) for name in names]


def _usual(machine: str) -> tuple[str, ...]:
    """What a file is compiled for where nobody says: nearly every processor of the last ten years,
    and, by vectors twice as long, many."""
    return X86[1:] if machine.startswith("x86") else (MACHINES.get(machine, ("native", ()))[0],)


def _require_known(name: str, machine: str, is_host: bool) -> None:
    known = [*(X86 if machine.startswith("x86") else (MACHINES[machine][0],))]
    known += ["native"] if is_host else []
    if name not in known:
        raise ValueError(f"cpu={name!r} is none of {', '.join(known)}")


def _flags(name: str) -> tuple[str, list[str]]:
    """What the program calls a processor, and the compiler's flags for it."""
    if name == "native":
        words = {w for w in _features() if w.startswith(_FEATURES)}
        wide = ["-mprefer-vector-width=512"] if "avx512f" in words else []
        return "x86-64:" + " ".join(sorted(words)), ["-march=native", *X86_GCC, *wide]
    if name in X86:
        wide = ["-mprefer-vector-width=512"] if name == X86[-1] else []
        return name, [f"-march={name}", *X86_GCC, *wide]
    return name, []


def _features() -> list[str]:
    """What this processor says that it can."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return line.partition(":")[2].split()
    return []


def _cross(machine: str) -> Toolchain:
    command = f"{machine}-gcc"
    if shutil.which(command) is None and (package := config.compiler_of_package()) is not None:
        command = f"{package} -target {machine}"  # zig has each machine's headers and libraries
    elif shutil.which(command) is None:
        package = f"gcc-{machine.replace('_', '-')}"
        raise CompilerMissing(
            f"no compiler for {machine}: {command!r} is not on the PATH (anywhere: pip "
            f"install 'torch-tenon[compiler]'; Debian and Ubuntu: apt install {package})"
        )
    return Toolchain(command)


def _units(kernels: dict[str, Kernel]) -> list[tuple[str, bool]]:
    """The sources of an object, each with whether people wrote it."""
    generated = {name: k.source for name, k in kernels.items() if k.code is None}
    parts: list[dict[str, str]] = [{} for _ in range(min(os.cpu_count() or 1, len(generated)))]
    for name, source in sorted(generated.items(), key=lambda item: -len(item[1])):
        min(parts, key=lambda part: sum(map(len, part.values())))[name] = source
    texts = [
        ("\n".join([*headers("".join(part.values())), *_bodies(part)]), False) for part in parts
    ]
    by_hand = {name: k.source for name, k in kernels.items() if k.code is not None}
    texts += [(f"#define {ENTRY} {name}\n{source}", True) for name, source in by_hand.items()]
    driver = DRIVER.replace("@NAME@", _DRIVER_NAME)
    texts.append(("\n".join([*headers(driver), driver]), False))
    texts.append((INTERFACE + template(TEMPLATES / "alone.c"), False))
    return texts


def _bodies(part: dict[str, str]) -> list[str]:
    return [source.replace("@NAME@", name) for name, source in part.items()]


def _object(units: Sequence[tuple[str, bool]], flags: Sequence[str], compiler: Toolchain) -> bytes:
    cache = Cache(Path(config.cache_directory()) / "kernels")
    with tempfile.TemporaryDirectory(prefix="tenon-pack-") as place:
        folder = Path(place)

        def compiled(k: int) -> Path:
            text, by_hand = units[k]
            source = folder / f"{k}.c"
            made = source.with_suffix(".o")
            # One `tenon_matmul` is declared by each unit that multiplies.
            options = [
                "-fcommon",
                *compiler.openmp,
                *(STRICT if by_hand else ["-w"]),
                *compiler.spelled([*_COMMON, *flags]),
            ]
            name = digest(text, *options, compiler.identity) + ".o"
            known = cache.read_checked(name)
            if known is not None:
                made.write_bytes(known)
                return made
            source.write_text(text)
            _run([*compiler.words, *options, "-c", str(source), "-o", str(made)], compiler)
            cache.write_checked(name, made.read_bytes())
            return made

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compiled, range(len(units))))
        (folder / "visible").write_text(_VISIBLE)
        result = folder / "kernels.so"
        link = [*compiler.words, "-shared", "-nostartfiles", "-s", *map(str, objects)]
        link += [f"-Wl,--version-script={folder / 'visible'}", "-Wl,--gc-sections", "-Wl,-z,defs"]
        _run([*link, "-o", str(result), "-lm"], compiler)
        return result.read_bytes()


def _run(command: Sequence[str], compiler: Toolchain) -> None:
    process = toolchain.start(command, 10 * compiler.seconds)
    try:
        errors = process.communicate()[1].decode(errors="replace")
        toolchain.require_running(process)
    finally:
        toolchain.end(process)
        process.wait()
    if process.returncode != 0:
        first = "\n".join(errors.splitlines()[:20])
        raise CompileError(f"{compiler.command} failed ({process.returncode})\n{first}")
