"""Settings: what is accepted, what is refused and how, and a cache that is the user's own."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from torch_tenon import config


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in config.SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)


def test_every_setting_is_described_and_has_a_default() -> None:
    for setting in config.SETTINGS:
        assert setting.variable == f"TENON_{setting.name.upper()}"
        assert setting.doc.endswith(".") and "\n" not in setting.doc
        setting.read()
    assert config.TARGET.read() == "cpu"
    assert config.DEVICES.read() == 1
    assert config.MEMORY_LIMIT.read() is None
    assert config.WARN_FALLBACK.read() is False
    assert config.LOG.read() == ()
    assert config.differences() == []


def test_the_documents_have_every_setting_and_no_other() -> None:
    page = Path(__file__).parents[1] / "docs" / "settings.md"
    rows = re.findall(r"^\| `(TENON_\w+)` \|.*\|.*\| \S.* \|$", page.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(setting.variable for setting in config.SETTINGS)


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        (config.TARGET, "mytarget", "mytarget"),
        (config.TARGET, "package.module:Class", "package.module:Class"),
        (config.TARGET, "path/to/file.py:Class", "path/to/file.py:Class"),
        (config.DEVICES, "64", 64),
        (config.MEMORY_LIMIT, "512MiB", 512 << 20),
        (config.MEMORY_LIMIT, "2GiB", 2 << 30),
        (config.MEMORY_LIMIT, "1.5 gb", 1_500_000_000),
        (config.MEMORY_LIMIT, "4096", 4096),
        (config.MEMORY_LIMIT, "4096B", 4096),
        (config.WARN_FALLBACK, "1", True),
        (config.WARN_FALLBACK, "Off", False),
        (config.LOG, " ops, target", ("ops", "target")),
        (config.DEVICES, "", 1),
    ],
)
def test_values(
    monkeypatch: pytest.MonkeyPatch, setting: config.Setting, text: str, value: object
) -> None:
    monkeypatch.setenv(setting.variable, text)
    assert setting.read() == value


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (config.TARGET, "file.py:"),
        (config.TARGET, ":Class"),
        (config.DEVICES, "0"),
        (config.DEVICES, "65"),
        (config.DEVICES, "two"),
        (config.MEMORY_LIMIT, "lots"),
        (config.MEMORY_LIMIT, "-1GiB"),
        (config.MEMORY_LIMIT, "0"),
        (config.MEMORY_LIMIT, "0.1B"),
        (config.MEMORY_LIMIT, "infGiB"),
        (config.MEMORY_LIMIT, "nan"),
        (config.MEMORY_LIMIT, "12XiB"),
        (config.MEMORY_LIMIT, "9999999TiB"),
        (config.WARN_FALLBACK, "maybe"),
        (config.CC, "no-such-compiler"),
        (config.LOG, "ops,everything"),
    ],
)
def test_invalid_value_names_variable_value_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, setting: config.Setting, text: str
) -> None:
    monkeypatch.setenv(setting.variable, text)
    with pytest.raises(config.ConfigError) as raised:
        setting.read()
    message = str(raised.value)
    assert setting.variable in message and text in message and setting.allowed in message


def test_differences_lists_what_is_not_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENON_DEVICES", "3")
    monkeypatch.setenv("TENON_TARGET", "cpu")  # The default, said aloud.
    monkeypatch.setenv("TENON_LOG", "ops")
    found = {d.setting.variable: (d.value, d.default) for d in config.differences()}
    assert found == {"TENON_DEVICES": ("3", "1"), "TENON_LOG": ("ops", "none")}


def test_compiler_is_the_first_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    words = shlex.split(config.CC.read() or "")
    assert os.access(words[0], os.X_OK) and words[1:] == ["cc"]  # a package's
    with monkeypatch.context() as hidden:
        hidden.setitem(sys.modules, config.COMPILER_PACKAGE, None)
        assert config.CC.read() is None
    for name in ("clang", "gcc"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert config.CC.read() == str(tmp_path / "gcc")
    monkeypatch.setenv("TENON_CC", "clang")
    assert config.CC.read() == str(tmp_path / "clang")


def test_cache_is_where_xdg_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert config.CACHE_DIR.read() == str(tmp_path / ".cache" / "torch_tenon")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert config.CACHE_DIR.read() == str(tmp_path / ".cache" / "torch_tenon")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert config.CACHE_DIR.read() == str(tmp_path / "xdg" / "torch_tenon")
    monkeypatch.setenv("TENON_CACHE_DIR", "~/mine")
    assert config.CACHE_DIR.read() == str(tmp_path / "mine")


def test_cache_is_made_for_the_user_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "cache"
    monkeypatch.setenv("TENON_CACHE_DIR", str(path))
    before = os.umask(0o277)
    try:
        assert config.cache_problem(str(path)) is None
        tmp_path.chmod(0o700)
        (tmp_path / "deep").mkdir(0o700)
        (tmp_path / "deep").chmod(0o700)
        assert config.cache_directory() == str(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o700
    assert config.cache_directory() == str(path)


def test_cache_that_others_can_reach_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TENON_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o770)
    with pytest.raises(config.ConfigError, match=f"0770.*chmod 700 {tmp_path}"):
        config.cache_directory()


def test_cache_of_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TENON_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    with pytest.raises(config.ConfigError, match=f"belongs to user {user}, not to {user + 1}"):
        config.cache_directory()


def test_cache_that_is_no_directory_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("")
    link.symlink_to(tmp_path / "nothing")
    for path, problem in ((file, "not a directory"), (link, "link to nothing")):
        monkeypatch.setenv("TENON_CACHE_DIR", str(path))
        with pytest.raises(config.ConfigError, match=problem):
            config.cache_directory()
    monkeypatch.setenv("TENON_CACHE_DIR", str(file / "below"))
    with pytest.raises(config.ConfigError, match="TENON_CACHE_DIR"):
        config.cache_directory()


def test_reading_settings_needs_nothing_heavy() -> None:
    code = "import sys, torch_tenon.config; print({'torch', 'yaml', 'numpy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1],
        # Who switches autoloading off gets the device from importing the package, and so PyTorch.
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "set()"
