"""Which paths cluster settings may name, and that tokens are read only from allowed directories."""

from __future__ import annotations

import os

import pytest

from acmeweb.common.errors import InvalidInput
from jobs.logs.allowed_paths import AllowedPaths, read_program_token


@pytest.fixture
def home(tmp_path):
    for name in ("var/tokens/users", "var/secrets", "etc/tokens", "logs", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "var/tokens/seren").write_text("t0ken\n")
    (tmp_path / "var/tokens/users/ada").write_text("adas")
    (tmp_path / "var/secrets/database").write_text("s3cret")
    (tmp_path / "elsewhere/word").write_text("word")
    return tmp_path


@pytest.fixture
def allowed(home):
    return AllowedPaths(
        var=str(home / "var"),
        token_dirs=(str(home / "var/tokens"), str(home / "etc/tokens")),
        bundled_logs=str(home / "var/cluster/logs"),
    )


def refusal(check, path):
    with pytest.raises(InvalidInput) as caught:
        check(str(path))
    return str(caught.value)


def test_token_beneath_an_allowed_directory_is_read(home, allowed):
    assert allowed.read_token(str(home / "var/tokens/seren")) == "t0ken"
    assert allowed.read_token(str(home / "var/tokens/users/ada")) == "adas"
    allowed.check_token_directory(str(home / "var/tokens"))
    allowed.check_token_directory(str(home / "var/tokens/users"))


@pytest.mark.parametrize(
    "path",
    ["elsewhere/word", "var/secrets/database", "var/tokens/../secrets/database", "var/tokens", "var/tokens-old/a"],
)
def test_files_elsewhere_are_rejected_as_tokens(home, allowed, path):
    assert "ACME_TOKEN_DIRS" in refusal(allowed.read_token, f"{home}/{path}")
    assert "ACME_TOKEN_DIRS" in refusal(allowed.check_token_path, f"{home}/{path}")


def test_secrets_of_acme_are_rejected_even_beneath_an_allowed_directory(home):
    careless = AllowedPaths(var=str(home / "var"), token_dirs=(str(home),))

    assert "ACME_VAR" in refusal(careless.read_token, home / "var/secrets/database")
    assert careless.read_token(str(home / "elsewhere/word")) == "word"


def test_link_out_of_the_directory_is_rejected_and_one_within_is_followed(home, allowed):
    os.symlink(home / "var/secrets/database", home / "var/tokens/out")
    os.symlink("seren", home / "var/tokens/within")

    assert "ACME_TOKEN_DIRS" in refusal(allowed.read_token, home / "var/tokens/out")
    assert allowed.read_token(str(home / "var/tokens/within")) == "t0ken"


def test_link_created_between_check_and_use_is_not_followed(home):
    """The path is resolved once. Replacing one of its components afterwards has no effect."""

    class Replaced(AllowedPaths):
        def _locate_token(self, path):
            place = super()._locate_token(path)
            os.remove(path)
            os.symlink(home / "var/secrets/database", path)
            return place

    slow = Replaced(var=str(home / "var"), token_dirs=(str(home / "var/tokens"),))

    assert "cannot be read" in refusal(slow.read_token, home / "var/tokens/seren")


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is empty"),
        (b"two words", "more than one word"),
        (b"one\ntwo", "more than one word"),
        (b"\xff\xfe", "is not a text file"),
        (b"x" * 16385, "larger than 16 KiB"),
    ],
)
def test_invalid_token_file_is_explained(home, allowed, content, message):
    path = home / "var/tokens/odd"
    path.write_bytes(content)

    assert message in refusal(allowed.read_token, path)
    assert message in refusal(read_program_token, path)


def test_pipes_and_directories_are_rejected_as_tokens(home, allowed):
    os.mkfifo(home / "var/tokens/pipe")

    for name in ("pipe", "users"):
        assert refusal(allowed.read_token, home / "var/tokens" / name) == "is not a regular file"


@pytest.mark.parametrize("path", ["seren", "", "./seren", "~/seren"])
def test_relative_path_is_rejected(allowed, path):
    for check in (allowed.read_token, allowed.check_shared_directory, allowed.check_socket):
        assert "does not begin with /" in refusal(check, path)


@pytest.mark.parametrize(
    "path, message",
    [
        ("/", "root directory"),
        ("/etc", "a system directory (/etc)"),
        ("/etc/acme/logs", "a system directory (/etc)"),
        ("/var", "contains a system directory (/var/lib)"),
        ("/proc/self/root", "root directory"),
        ("/dev/shm", "a system directory (/dev)"),
        ("/logs\x00", "NUL"),
    ],
)
def test_system_directories_are_rejected_for_logs(allowed, path, message):
    assert message in refusal(allowed.check_shared_directory, path)


@pytest.mark.parametrize("path", ["", "var", "var/secrets", "var/cluster/logs", "etc", "etc/tokens"])
def test_log_directory_must_not_overlap_secrets_or_tokens(home, allowed, path):
    refusal(allowed.check_shared_directory, home / path)


def test_missing_directory_is_accepted(home, allowed):
    allowed.check_shared_directory(str(home / "logs"))
    allowed.check_shared_directory("/nonexistent/logs")


def test_configured_log_directories_are_the_only_allowed_ones(home):
    strict = AllowedPaths(var=str(home / "var"), token_dirs=(), log_dirs=(str(home / "logs"), "/var/lib/slurm/logs"))

    strict.check_shared_directory(str(home / "logs/seren"))
    strict.check_shared_directory("/var/lib/slurm/logs")
    assert "ACME_LOG_DIRS" in refusal(strict.check_shared_directory, home / "elsewhere")


def opened(allowed, path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        allowed.check_open_directory(descriptor)
    finally:
        os.close(descriptor)


def test_open_directory_is_checked_by_its_real_path(home, allowed):
    os.symlink(home / "var/secrets", home / "elsewhere/link")
    (home / "var/cluster/logs").mkdir(parents=True)

    opened(allowed, home / "logs")
    opened(allowed, home / "var/cluster/logs")  # of the bundled cluster
    with pytest.raises(InvalidInput, match="ACME_VAR"):
        opened(allowed, home / "elsewhere/link")


def test_sockets_of_acme_are_rejected_as_cluster_addresses(home, allowed):
    allowed.check_socket("/run/slurmrestd.sock")
    assert "ACME_VAR" in refusal(allowed.check_socket, home / "var/run/valkey.sock")
