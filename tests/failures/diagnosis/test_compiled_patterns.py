"""Compiled patterns in files: loaded only if they are trusted and whole, and never needed."""

import os
import stat

import pytest

from failures.diagnosis import compiled_patterns, engine, filters, scan, tables
from failures.diagnosis.signatures import cause
from failures.diagnosis.table import SIGNATURES

TEXT = b"RuntimeError: CUDA error: an illegal memory access was encountered\nsome line\n"
FEW = SIGNATURES[:3]


@pytest.fixture
def saved(tmp_path):
    scan.stored_scanner(FEW, [tmp_path])
    return next(tmp_path.glob("table-*"))


def loaded(place, signatures=FEW):
    return compiled_patterns.load(scan.signatures_version(signatures), [place])


def test_set_up_compiles_all_tables_into_files_that_other_users_can_read(tmp_path):
    tables.compile_tables([tmp_path])

    again = scan.Scanner(SIGNATURES, [scan.PatternDatabase(loaded(tmp_path, SIGNATURES))])

    assert again.hits(TEXT) == scan.shipped_scanner().hits(TEXT) != []
    assert loaded(tmp_path, filters.as_signatures(filters.SHIPPED_FILTERS))
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o644}


def test_second_place_is_used_if_the_first_one_is_not_writable(tmp_path):
    (tmp_path / "file").write_text("a file where the directory belongs")
    places = [tmp_path / "file", tmp_path / "cache"]

    scan.stored_scanner(FEW, places)

    assert compiled_patterns.load(scan.signatures_version(FEW), places)
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_patterns_work_without_any_writable_place(tmp_path):
    (tmp_path / "file").write_text("a file where the directory belongs")

    assert scan.stored_scanner(FEW, [tmp_path / "file"]).signatures == FEW


def test_only_the_newest_files_are_kept(tmp_path):
    few = scan.stored_scanner(FEW, [])._databases[0].compiled

    for number in range(compiled_patterns.MAX_STORED_DATABASES + 2):
        compiled_patterns.save(f"v{number}", few, [tmp_path])

    assert compiled_patterns.load("v0", [tmp_path]) is None and compiled_patterns.load("v9", [tmp_path])
    assert len(list(tmp_path.iterdir())) == compiled_patterns.MAX_STORED_DATABASES


@pytest.mark.parametrize("spoil", [lambda raw: raw[:-100], lambda raw: b"", lambda raw: raw[:500] + b"x" + raw[501:]])
def test_damaged_file_is_not_loaded(saved, spoil):
    saved.write_bytes(spoil(saved.read_bytes()))

    assert loaded(saved.parent) is None


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_file_writable_by_others_is_not_loaded(saved, mode):
    saved.chmod(mode)

    assert loaded(saved.parent) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_file_of_another_user_is_not_loaded(saved):
    os.chown(saved, 12_345, 12_345)

    assert loaded(saved.parent) is None


def test_relative_cache_path_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert compiled_patterns.directories()[-1] == tmp_path / ".cache" / "acme"


def test_added_rules_find_the_same_as_a_table_compiled_as_a_whole():
    rule = cause("quokka", "RuntimeError", 74, r"quokka .{0,20} overflowed", "quokka 7 overflowed")
    text = TEXT + b"quokka 12 overflowed\n"

    added = scan.shipped_scanner().with_rules([rule])

    assert added.hits(text) == scan.Scanner([*SIGNATURES, rule]).hits(text)
    assert added.version == scan.signatures_version([*SIGNATURES, rule])
    assert engine.diagnose_text("quokka 12 overflowed\n", scanner=added).root_cause == "RuntimeError"


def test_adding_no_rules_gives_the_same_scanner():
    shipped = scan.shipped_scanner()

    assert shipped.with_rules([]) is shipped


def test_learned_filters_find_lines_beside_the_shipped_ones():
    learned = filters.FilterRule(name="quokka", pattern=r"quokka \d+", example="quokka 12", origin="user")

    scanner = filters.filter_scanner((*filters.SHIPPED_FILTERS, learned))

    found = {
        scanner.signatures[index].name for _, index in scanner.hits(b"quokka 12\n[INFO] saved checkpoint shard 4\n")
    }
    assert found == {"quokka", "checkpoint-saved"}
