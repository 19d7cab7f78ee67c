"""Secrets are created once, never change, and are private."""

import os

import pytest

from acmeweb.common.env import read_file
from acmeweb.services import secret_files


def mode(path):
    return path.stat().st_mode & 0o777


def test_secret_is_created_once(tmp_path):
    first = secret_files.read_or_create(tmp_path / "postgres")

    assert secret_files.read_or_create(tmp_path / "postgres") == first
    assert len(first) == 48


def test_two_secrets_differ(tmp_path):
    assert secret_files.read_or_create(tmp_path / "one") != secret_files.read_or_create(tmp_path / "two")


def test_secret_file_is_private_for_every_umask(tmp_path):
    before = os.umask(0)
    try:
        secret_files.read_or_create(tmp_path / "secret")
    finally:
        os.umask(before)

    assert mode(tmp_path / "secret") == 0o600


@pytest.mark.parametrize("torn", ["", "\n", "  "])
def test_empty_secret_file_is_replaced(tmp_path, torn):
    (tmp_path / "secret").write_text(torn)

    assert len(secret_files.read_or_create(tmp_path / "secret")) == 48


def test_leftover_of_an_interrupted_write_is_replaced(tmp_path):
    (tmp_path / "secret.new").write_text("half")

    assert len(secret_files.read_or_create(tmp_path / "secret")) == 48


def test_env_file_is_read_back_unchanged(tmp_path):
    values = {"SECRET_KEY": "a=b=c", "DATABASE_URL": "postgresql://acme:x@127.0.0.1:21000/acme"}

    secret_files.write_env(tmp_path / "env", values)

    assert read_file(tmp_path / "env") == values
    assert mode(tmp_path / "env") == 0o600
