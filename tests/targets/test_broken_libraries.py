"""A library that is no target, or another interface's: the error says what was expected."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fresh_process import output, run
from needs import library_targets

from torch_tenon import targets
from torch_tenon.targets.library import LibraryTarget
from torch_tenon.targets.target import TargetError

sys.path.insert(0, str(Path(__file__).parent))
from c_compiler import ROOT, needs_compiler, shared_object
from through_ctypes import FIELDS, Failed, Library

pytestmark = needs_compiler

REFUSES = """
const tenon_target_functions *tenon_target(uint32_t interface, tenon_status *status) {
  const char *why = "the accelerator is not plugged in";
  status->code = TENON_UNSUPPORTED;
  for (int k = 0; (status->text[k] = why[k]); ++k) {}
  return 0;
}
"""
LATER = """
#include <stdio.h>
const tenon_target_functions *tenon_target(uint32_t interface, tenon_status *status) {
  status->code = TENON_UNSUPPORTED;
  snprintf(status->text, sizeof(status->text),
           "this is of version 2 of the interface, and not %u", interface);
  return 0;
}
"""
# The toy as it was when the interface ended with `wait`. What follows is no part of its struct.
EARLIER = f"""
#define tenon_target toy_target
#include "{ROOT / "examples" / "toy.c"}"
#undef tenon_target

const tenon_target_functions *tenon_target(uint32_t interface, tenon_status *status) {{
  static union {{
    tenon_target_functions whole;
    unsigned char bytes[sizeof(tenon_target_functions)];
  }} made;
  const tenon_target_functions *toy = toy_target(interface, status);
  if (!toy)
    return 0;
  memset(made.bytes, 0x5a, sizeof(made.bytes));
  memcpy(made.bytes, toy, offsetof(tenon_target_functions, seconds));
  made.whole.size = offsetof(tenon_target_functions, seconds);
  return &made.whole;
}}
"""
CHANGED = f"""
#define tenon_target toy_target
#include "{ROOT / "examples" / "toy.c"}"
#undef tenon_target

const tenon_target_functions *tenon_target(uint32_t interface, tenon_status *status) {{
  static tenon_target_functions made;
  made = *toy_target(interface, status);
  made.CHANGE;
  return &made;
}}
"""


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no file"):
        targets.load(f"{tmp_path}/libnpu.so")


def opened(path: Path) -> str:
    """What is said of a library that is no target."""
    with pytest.raises(TargetError) as raised:
        LibraryTarget(path)
    return str(raised.value)


@library_targets
def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / "libnpu.so"
    path.write_text("what a compiler reads")
    assert str(path) in opened(path)


@library_targets
def test_a_library_without_the_function(tmp_path: Path) -> None:
    path = shared_object("int nothing;", tmp_path / "libnpu.so")
    text = opened(path)
    assert str(path) in text and "tenon_target" in text


@library_targets
def test_another_version_of_the_interface(tmp_path: Path) -> None:
    path = shared_object(LATER, tmp_path / "libnpu.so")
    assert "this is of version 2 of the interface, and not 1" in opened(path)


@pytest.mark.slow
@library_targets
def test_hardware_that_is_not_there(tmp_path: Path) -> None:
    path = shared_object(REFUSES, tmp_path / "libnpu.so")
    assert "the accelerator is not plugged in" in opened(path)
    done = run("import torch", imports=True, TENON_TARGET=str(path))
    assert done.returncode != 0 and "the accelerator is not plugged in" in done.stderr


@library_targets
@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        ("copy = 0", "'copy'"),
        ("copy_queues = 1", "'copy_on'"),
        (
            "begin_recording = (void *)made.allocate",
            "'end_recording', 'replay' or 'free_recording'",
        ),
    ],
)
def test_a_queue_that_lacks_a_function(change: str, lacks: str, tmp_path: Path) -> None:
    path = shared_object(CHANGED.replace("CHANGE", change), tmp_path / "libnpu.so")
    assert lacks in opened(path)


@library_targets
def test_a_library_of_an_earlier_time(tmp_path: Path) -> None:
    """It is compiled for fewer fields: the others are taken for null."""
    path = shared_object(EARLIER, tmp_path / "libnpu.so")
    code = """
        import torch, torch_tenon
        native = torch_tenon.target().native
        assert not native.runs_kernels and not native.runs_calls
        x = torch.arange(6.0, device="tenon")
        for _ in range(4):
            assert (x * 2 + 1).tolist() == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]
        first, last = (torch.Event("tenon", enable_timing=True) for _ in range(2))
        first.record()
        x.add_(1)
        last.record()
        last.synchronize()
        assert abs(first.elapsed_time(last)) < 60e3
        try:
            native.load(b"", "matmul")
        except RuntimeError as error:
            print(error)
    """
    assert output(code, TENON_TARGET=str(path)) != ""


def test_the_smaller_struct_is_what_the_test_says(tmp_path: Path) -> None:
    library = Library(shared_object(EARLIER, tmp_path / "libearlier.so"))
    names = [name for name, _ in FIELDS]
    functions = type(library.functions)
    assert library.functions.size == functions.seconds.offset
    assert names.index("seconds") == names.index("wait") + 1
    block = library.allocate(512)
    library.write(block, b"abc")
    assert library.read(block, 3) == b"abc"


def test_what_a_library_refuses_with(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="not plugged in"):
        Library(shared_object(REFUSES, tmp_path / "librefuses.so"))
    with pytest.raises(Failed, match="version 2 of the interface, and not 1"):
        Library(shared_object(LATER, tmp_path / "liblater.so"))


COUNTED = f"""
#define tenon_target toy_target
#include "{ROOT / "examples" / "toy.c"}"
#undef tenon_target

int opened;
const tenon_target_functions *tenon_target(uint32_t interface, tenon_status *status) {{
  ++opened;
  return toy_target(interface, status);
}}
"""


@pytest.mark.slow
@library_targets
def test_a_library_that_libtenon_rt_has_open_is_not_opened_anew(tmp_path: Path) -> None:
    """Queues of the device's core take turns with those of a program that was there before."""
    path = shared_object(COUNTED, tmp_path / "libnpu.so")
    code = """
        import ctypes, os, sys
        from torch_tenon.runtime.library import Status, library
        path = os.environ["TENON_TARGET"]
        device, status = ctypes.c_void_p(), Status()
        open_device = library()._library.tenon_open_device
        assert open_device(path.encode(), 0, ctypes.byref(device), ctypes.byref(status)) == 0
        assert "torch" not in sys.modules
        import torch
        assert (torch.arange(3.0).to("tenon") + 1).tolist() == [1, 2, 3]
        print(ctypes.c_int.in_dll(ctypes.CDLL(path), "opened").value)
    """
    assert output(code, imports=True, TENON_TARGET=str(path)) == "1"


SLOW = f"""
#include <unistd.h>
#define tenon_target toy_target
#include "{ROOT / "examples" / "toy.c"}"
#undef tenon_target

static int32_t slowly(
    void *context, const void *code, uint64_t nbytes, const char *entry, uint64_t *kernel,
    tenon_status *status) {{
  sleep(2);
  return load(context, code, nbytes, entry, kernel, status);
}}

const tenon_target_functions *tenon_target(uint32_t interface, tenon_status *status) {{
  static tenon_target_functions made;
  const tenon_target_functions *toy = toy_target(interface, status);
  if (!toy)
    return 0;
  made = *toy;
  made.load = slowly;
  return &made;
}}
"""


def test_a_program_ends_while_a_thread_of_it_compiles(tmp_path: Path) -> None:
    """The interpreter stops the thread once the library is done, in the middle of C++."""
    path = shared_object(SLOW, tmp_path / "libslow.so")
    code = f"""
    import threading, time
    from torch_tenon.targets.library import LibraryTarget

    class Last:
        def __del__(self, wait=time.sleep):
            wait(3)  # while modules go, the thread comes back

    native = LibraryTarget({str(path)!r}).native
    threading.Thread(target=native.load, args=(b"", "matmul"), daemon=True).start()
    last = Last()
    print("over")
    """
    assert output(code) == "over"
