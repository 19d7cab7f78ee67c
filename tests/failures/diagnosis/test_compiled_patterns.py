"""The compiled table between processes: believed only where it is ours and whole, and never needed."""

import pytest

from failures.diagnosis import compiled_patterns, scan
from failures.diagnosis.table import SIGNATURES

TEXT = b"RuntimeError: CUDA error: an illegal memory access was encountered\nsome line\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "acme"


@pytest.fixture
def saved(place):
    compiled_patterns.save("v1", scan.shipped_scanner()._database)
    return next(place.glob("table-v1-*"))


def test_cached_database_finds_the_same(saved):
    again = scan.Scanner(SIGNATURES, compiled_patterns.load("v1"))

    assert again.hits(TEXT) == scan.shipped_scanner().hits(TEXT) != []


def test_only_the_newest_databases_are_kept(saved, place):
    assert compiled_patterns.load("v2") is None

    for number in range(2, 2 + compiled_patterns.MAX_CACHED_DATABASES):
        compiled_patterns.save(f"v{number}", scan.shipped_scanner()._database)

    assert compiled_patterns.load("v1") is None and compiled_patterns.load("v2")
    assert len(list(place.iterdir())) == compiled_patterns.MAX_CACHED_DATABASES


@pytest.mark.parametrize("spoil", [lambda raw: raw[:-100], lambda raw: b"", lambda raw: raw[:500] + b"x" + raw[501:]])
def test_damaged_database_is_compiled_again(saved, spoil):
    saved.write_bytes(spoil(saved.read_bytes()))

    assert compiled_patterns.load("v1") is None


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_database_writable_by_others_is_not_loaded(saved, mode):
    saved.chmod(mode)

    assert compiled_patterns.load("v1") is None


def test_unwritable_cache_is_ignored(place, monkeypatch):
    place.write_text("a file where the directory belongs")

    compiled_patterns.save("v1", scan.shipped_scanner()._database)

    assert compiled_patterns.load("v1") is None


def test_relative_cache_path_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))

    compiled_patterns.save("v1", scan.shipped_scanner()._database)

    assert list((tmp_path / ".cache" / "acme").glob("table-v1-*"))
