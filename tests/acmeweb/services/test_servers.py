"""The embedded servers: an interrupted initialization is repeated, a complete one is kept."""

import os
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from acmeweb.services import postgres, users, valkey
from acmeweb.services.preflight import CannotStart
from tests import servers

pytestmark = pytest.mark.xdist_group("servers")


@pytest.fixture
def home(tmp_path):
    tmp_path.chmod(0o755)
    return tmp_path / "postgres"


def prepare(home):
    postgres.prepare_data_directory(home, "secret", home.parent / "initdb.log", users.default().postgres)
    return home / "data"


def test_interrupted_initdb_is_repeated(home):
    (home / "data.new").mkdir(parents=True)
    (home / "data.new" / "PG_VERSION").write_text("18\n")
    (home / "data").mkdir()
    (home / "data" / "half").write_text("a directory without PG_VERSION")

    data = prepare(home)

    assert (data / "PG_VERSION").read_text().strip() == "18"
    assert not (data / "half").exists() and not (home / "data.new").exists()


def test_complete_data_directory_is_kept_and_a_stale_pid_file_removed(home):
    data = prepare(home)
    made = (data / "PG_VERSION").stat().st_mtime_ns
    (data / "postmaster.pid").write_text(f"{os.getpid()}\n")

    prepare(home)

    assert (data / "PG_VERSION").stat().st_mtime_ns == made
    assert not (data / "postmaster.pid").exists()


def test_password_file_is_removed_after_initdb(home):
    prepare(home)

    assert sorted(path.name for path in home.iterdir()) == ["data"]


def test_failing_initdb_is_reported_in_one_sentence(home, tmp_path):
    with pytest.raises(CannotStart, match=r"PostgreSQL could not create its files: .*initdb.log"):
        postgres.prepare_data_directory(home, "", tmp_path / "initdb.log", users.default().postgres)

    assert not (home / "data").exists()


def test_full_disk_is_reported_in_one_sentence(tmp_path):
    log = tmp_path / "var" / "log" / "initdb.log"
    log.parent.mkdir(parents=True)
    log.write_text('initdb: error: could not write file "x": No space left on device\n')

    assert (
        postgres._initdb_error_text(log)
        == f"The disk of {tmp_path / 'var'} is full: PostgreSQL could not create its files."
    )


def test_the_database_is_created_and_a_wrong_password_refused(tmp_path):
    tmp_path.chmod(0o755)
    with ExitStack() as stack:
        url = servers.start_postgres(tmp_path, stack)

        with psycopg.connect(url) as session:
            assert session.execute("SELECT current_database(), pg_encoding_to_char(6)").fetchone() == ("acme", "UTF8")
        with pytest.raises(CannotStart, match="refuses the password"):
            postgres.accepts_login(url.replace("acme:", "acme:x"))


def test_valkey_requires_the_password_and_evicts_nothing(tmp_path):
    text = valkey.configuration(Path("/a b"), "secret", 21000)

    assert "requirepass secret\n" in text
    assert 'dir "/a b"\n' in text
    assert "maxmemory-policy noeviction\n" in text
    assert "appendonly yes\n" in text


def test_port_without_a_server_does_not_answer():
    assert valkey.accepts_login("redis://127.0.0.1:1/0") is False
    assert postgres.accepts_login("postgresql://acme:x@127.0.0.1:1/acme") is False
