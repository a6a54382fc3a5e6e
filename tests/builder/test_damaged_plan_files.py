"""No damage to a file that was kept does harm: it is noticed, or the file cannot be misused.

Damage of the first kind leaves the checksum as it was. That of the second kind has a checksum that
fits, as a file that somebody made on purpose, or with another version of the compiler, has.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fresh_process import output

FILL = """
    import itertools, json, os, sys
    import torch
    from torch_tenon import _C
    from torch_tenon.builder.thread import builder

    folder, out = sys.argv[1:]
    kept = []

    def ask(window, wait):
        before = set(os.listdir(folder + "/plans"))
        builder.ask(window, wait)
        new = set(os.listdir(folder + "/plans")) - before
        new = [name for name in new if name.endswith("plan")]
        if new:
            kept.append((new[0], window.structure().hex()))

    def steps(n):
        x = torch.arange(float(n * 6)).reshape(n, 6).to("tenon") / 7
        yield ((x * 2 + 1).sin() - x.mean(1, keepdim=True)).cpu()
        x.sort(0)  # which the plan leaves out: it would not run otherwise
        yield (x.sort(1)[0].cpu(), x.topk(2)[1].cpu())

    torch.set_num_threads(1)  # as in a child that was forked
    torch.zeros(1, device="tenon")
    _C.set_ask_for_plan(ask)
    for n in (4, 4, 5, 5, 6, 6, 7):
        for _ in steps(n):
            pass
    json.dump(kept, open(out, "w"))
"""

# Reads each file again and again, each time damaged in another way.
READ = """
    import json, os, random, sys
    import torch
    from torch_tenon import _C

    folder, out, how = sys.argv[1:]
    torch.zeros(1, device="tenon")
    magic = len(b"torch-tenon plan 8\\n")
    draw = random.Random(7)

    def other(data, at):
        return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1:]

    def text_at(data, at):  # where a text ends that begins here
        size = shift = 0
        while True:
            size |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 0x80:
                return at + size // 2

    def damaged(body, start):
        at = draw.randrange(start, len(body))
        kind = draw.randrange(6)
        if kind < 2:
            return other(body, at)
        if kind == 2:
            return body[:at]
        if kind == 3:  # a length, an index or an offset
            value = draw.choice([b"\\xff" * 9 + b"\\x01", b"\\x00", b"\\x80\\x80\\x04", b"\\x01"])
            return body[:at] + value + body[at + 1:]
        if kind == 4:
            return body[:at] + draw.randbytes(draw.randrange(1, 9)) + body[at:]
        return body[:at] + body[at + draw.randrange(1, 9):]

    read = accepted = 0
    kept = json.load(open(out))
    for name, structure in [kept[0], kept[1], kept[-1]]:
        path = f"{folder}/plans/{name}"
        whole = open(path, "rb").read()
        assert whole[:magic].endswith(b"\\n") and whole.startswith(b"torch-tenon plan")
        structure = bytes.fromhex(structure)
        window = _C.Window.of_structure(structure)
        assert window.find_kept()
        body = whole[magic + 8:]
        start = text_at(body, text_at(body, 0))  # behind identity and structure
        if how == "noticed":
            places = [*range(len(whole) - len(body) + start, len(whole)), *range(magic + 8)]
            places += draw.sample(range(len(whole)), 100)
            files = [other(whole, at) for at in places]
            files += [whole[:draw.randrange(len(whole))] for _ in range(50)]
        else:
            files = []
            for _ in range(1000):
                made = damaged(body, start)
                files.append(whole[:magic] + _C.checksum(made).to_bytes(8, "little") + made)
        for data in files:
            with open(path, "wb") as file:
                file.write(data)
            if data == whole:
                continue
            read += 1
            accepted += _C.Window.of_structure(structure).find_kept()
        with open(path, "wb") as file:
            file.write(whole)
        assert _C.Window.of_structure(structure).find_kept()
    print(read, accepted)
"""

# Runs plans that are calls alone, each from a file that was damaged in another way. (A kernel does
# what its code does with the numbers that it is given; nobody can check those.)
RUN = """
    import glob, os, random, signal, sys
    import torch
    from torch_tenon import _C

    folder, out = sys.argv[1:]
    draw = random.Random(3)
    magic = len(b"torch-tenon plan 8\\n")
    x = (torch.arange(24.0).reshape(4, 6) / 7).to("tenon")
    x.cpu()

    def step():
        x.sort(0)  # which the plan leaves out: it would not run otherwise
        return x.sort(1)[0].cpu(), x.topk(2)[1].cpu()

    files = {p: open(p, "rb").read() for p in glob.glob(folder + "/plans/*.plan")}
    files = {p: b for p, b in files.items() if b"kernels/" not in b and b"aten::" in b}
    assert files
    codes, by_plan = set(), 0
    for _ in range(120):
        for path, whole in files.items():
            body = bytearray(whole[magic + 8:])
            for _ in range(draw.randrange(1, 3)):
                at = draw.randrange(len(body) - 400, len(body))
                body[at] = draw.choice([body[at] ^ 1, body[at] ^ 2, body[at] + 2 & 0x7F, 0x7E])
            with open(path, "wb") as file:
                file.write(whole[:magic] + _C.checksum(bytes(body)).to_bytes(8, "little") + body)
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            try:
                step()
                os._exit(2 if sum(run.by_plan for run in _C.window_runs()) else 0)
            except (RuntimeError, IndexError, ValueError, TypeError):
                os._exit(1)
        code = os.waitpid(child, 0)[1]
        codes.add(code)
        by_plan += code == 2 << 8
        for path, whole in files.items():
            with open(path, "wb") as file:
                file.write(whole)
    print(sorted(codes - {0, 1 << 8, 2 << 8}), by_plan > 0)
"""


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory, and beside it the names of its plans and the structures of their windows,
    which one process has made."""
    folder = tmp_path_factory.mktemp("learned")
    environment = {"TENON_CACHE_DIR": f"{folder}/cache", "TENON_PLAN_FILES": "1"}
    output(
        FILL,
        f"{folder}/cache",
        f"{folder}/structures",
        TENON_BUILDER="thread",
        TENON_EXECUTE="compiled",
        **environment,
    )
    return folder


def use(code: str, learned: Path, tmp_path: Path, *arguments: str, **environment: str) -> str:
    """Runs code on a copy of the directory."""
    cache = shutil.copytree(learned / "cache", tmp_path / "cache")
    return output(
        code,
        str(cache),
        str(learned / "structures"),
        *arguments,
        TENON_CACHE_DIR=str(cache),
        TENON_PLAN_FILES="1",
        TENON_BUILDER="thread",
        **environment,
    )


@pytest.mark.slow
def test_each_bit_is_looked_at(learned: Path, tmp_path: Path) -> None:
    read, accepted = map(int, use(READ, learned, tmp_path, "noticed").split())
    assert read > 1000 and accepted == 0


def test_what_is_damaged_under_a_checksum_that_fits_is_read_without_harm(
    learned: Path, tmp_path: Path
) -> None:
    read, accepted = map(int, use(READ, learned, tmp_path, "unnoticed").split())
    assert read > 2000 and accepted < read / 2


@pytest.mark.slow
def test_what_is_damaged_under_a_checksum_that_fits_runs_without_harm(
    learned: Path, tmp_path: Path
) -> None:
    assert use(RUN, learned, tmp_path) == "[] True"
