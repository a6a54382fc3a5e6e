"""What tests start by `fresh_process` without an import of PyTorch is as a process of its own."""

import os
import subprocess
from pathlib import Path

import pytest
from fresh_process import Forked, python, start

SEEN = "import os, sys; print(sys.argv, sys.path[:2], os.getcwd(), __name__, __spec__ is None)"
CODE = {
    "what it sees": SEEN,
    "main": "import __main__; print(sorted(vars(__main__)), sys.modules[__name__] is __main__)",
    "modules": "print({'torch', 'numpy', 'sympy', 'torch_tenon'} & sys.modules.keys())",
    "an exit status": "print('said'); sys.exit(3)",
    "a text as status": "sys.exit('why')",
    "an exception": "raise ValueError('over')",
    "an interrupt": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "an end at once": "import os; print('lost'); os._exit(5)",
    "what is open": "import os; print(sorted(os.listdir('/proc/self/fd'))[:3])",
    "an end in order": """
import atexit, threading, time
atexit.register(print, "last")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
print("first")
""",
    "a module that is hidden": "sys.modules['torch'] = None; import torch",
    "NumPy alone": """
import numpy
print(numpy.ones((9, 9)) @ numpy.ones(9), "torch" in sys.modules)
""",
}
IMPORTS = {
    "PyTorch": """
import torch
x = torch.ones(300, 300, device="tenon")
print((x @ x).sum().item(), torch.__spec__.name, torch.__spec__.origin, torch.nn.Linear(2, 2))
""",
    "the package": """
import torch_tenon
print(torch_tenon.target().name, "torch" in sys.modules)
""",
    "PyTorch without the device": """
import os
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch
print(torch._C._get_privateuse1_backend_name(), "torch_tenon" in sys.modules)
""",
}


def same(tmp_path: Path, *command: str, **options: object) -> None:
    """Forked and new, the command prints and ends alike; of a traceback the last line counts."""
    forked, new = (
        python(*command, cwd=tmp_path, imports=imports, **options)  # type: ignore[arg-type]
        for imports in (False, True)
    )
    assert (forked.stdout, forked.returncode) == (new.stdout, new.returncode), forked.stderr
    assert forked.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]


@pytest.mark.sampled(len(CODE))
@pytest.mark.parametrize("code", CODE.values(), ids=CODE)
def test_code_does_what_it_does_in_a_new_process(tmp_path: Path, code: str) -> None:
    same(tmp_path, "-c", f"import sys\n{code}", "first", "--second")


@pytest.mark.slow
@pytest.mark.sampled(len(IMPORTS))
@pytest.mark.parametrize("code", IMPORTS.values(), ids=IMPORTS)
def test_imports_do_what_they_do_in_a_new_process(tmp_path: Path, code: str) -> None:
    same(tmp_path, "-c", f"import sys\n{code}")


def test_modules_and_scripts(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "script.py").write_text(f"{SEEN}\nprint(__file__)\nimport beside")
    (tmp_path / "folder" / "beside.py").write_text("print(__name__)")
    (tmp_path / "script.py").write_text(f"{SEEN}\nprint(__file__)")
    same(tmp_path, "folder/script.py", "first")
    same(tmp_path, "-m", "script", "first")
    same(tmp_path, "-m", "nowhere")


def test_the_environment_is_its_own(tmp_path: Path) -> None:
    code = "import os, sys; print(dict(os.environ), sys.path[1])"
    path = f"{tmp_path}:relative"
    same(tmp_path, "-c", code, env={"PATH": "/nowhere", "PYTHONPATH": path})
    same(tmp_path, "-c", code, env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1"})


def test_what_is_read_at_the_start_needs_a_new_process(tmp_path: Path) -> None:
    """scikit-learn sets the first one when it is imported."""
    for name, is_forked in (("KMP_INIT_AT_FORK", True), ("OMP_NUM_THREADS", False)):
        other = "2" if os.environ.get(name) == "1" else "1"
        process = start("-c", "print(1)", env={**os.environ, name: other})
        assert process.communicate() == ("1\n", "")
        assert isinstance(process, Forked) is is_forked


@pytest.mark.slow
@pytest.mark.parametrize("imports", [False, True])
def test_one_that_hangs_is_killed(tmp_path: Path, imports: bool) -> None:
    code = "import time; print('begins', flush=True); time.sleep(1000)"
    with pytest.raises(subprocess.TimeoutExpired) as error:
        python("-c", code, cwd=tmp_path, imports=imports, timeout=5)
    assert error.value.stdout == "begins\n" and error.value.timeout == 5


@pytest.mark.parametrize("imports", [False, True])
def test_several_at_once(tmp_path: Path, imports: bool) -> None:
    waits = (
        "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\nprint(1)"
    )
    several = [start("-c", waits, str(k), cwd=tmp_path, imports=imports) for k in range(3)]
    assert [process.poll() for process in several] == [None] * 3
    (tmp_path / "1").touch()
    assert several[1].communicate(timeout=60) == ("1\n", "") and several[1].returncode == 0
    assert several[0].poll() is several[2].poll() is None
    for process in (several[0], several[2]):
        process.kill()
        process.communicate(timeout=60)
        assert process.returncode == -9
