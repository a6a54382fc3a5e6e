import pytest


@pytest.fixture
def cache(tmp_path, monkeypatch):
    directory = tmp_path / "cache"
    monkeypatch.setenv("TENON_CACHE_DIR", str(directory))
    return directory
