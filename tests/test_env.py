"""Settings: the environment over the file, files for secrets, and sentences for what cannot be."""

from urllib.parse import urlsplit

import pytest

from acmeweb.env import BadSetting, Env, database, with_password

SCHEMES = ("redis", "valkey")


def test_the_environment_wins_over_the_file():
    env = Env({"SECRET_KEY": "real"}, {"SECRET_KEY": "file", "ACME_HOSTS": "a"})

    assert (env.text("SECRET_KEY"), env.text("ACME_HOSTS")) == ("real", "a")


def test_a_secret_comes_from_the_file_it_names(tmp_path):
    (tmp_path / "key").write_text("from a file\n")

    assert Env({"SECRET_KEY_FILE": str(tmp_path / "key")}).text("SECRET_KEY") == "from a file"


def test_a_secret_file_of_the_environment_wins_over_the_plain_value_beneath(tmp_path):
    (tmp_path / "key").write_text("given")

    assert Env({"SECRET_KEY_FILE": str(tmp_path / "key")}, {"SECRET_KEY": "beneath"}).text("SECRET_KEY") == "given"


def test_a_secret_file_that_is_missing_is_named():
    with pytest.raises(BadSetting, match="SECRET_KEY_FILE='/no/such': cannot be read"):
        Env({"SECRET_KEY_FILE": "/no/such"}).text("SECRET_KEY")


def test_an_alias_of_the_environment_wins_over_the_name_beneath():
    env = Env({"REDIS_URL": "redis://given"}, {"VALKEY_URL": "redis://beneath"})

    assert env.url(("VALKEY_URL", "REDIS_URL"), SCHEMES).hostname == "given"


def test_a_wrong_scheme_is_refused_without_showing_the_password():
    with pytest.raises(BadSetting) as caught:
        Env({"VALKEY_URL": "http://u:hidden@host"}).url(("VALKEY_URL",), SCHEMES)

    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "filled"),
    [
        ("postgresql://acme@db:5432/acme", "postgresql://acme:p%40s@db:5432/acme"),
        ("postgresql://acme:own@db/acme", "postgresql://acme:own@db/acme"),
        ("redis://valkey:6379/0", "redis://:p%40s@valkey:6379/0"),
    ],
)
def test_a_url_without_a_password_is_filled(url, filled):
    assert with_password(urlsplit(url), "p@s").geturl() == filled


def test_no_password_leaves_the_url_alone():
    assert with_password(urlsplit("redis://valkey/0"), "").geturl() == "redis://valkey/0"


def test_django_gets_the_password_unquoted():
    parts = with_password(urlsplit("postgresql://acme@db:5432/acme?sslmode=require"), "p@s/:")

    described = database(parts)

    assert (described["PASSWORD"], described["OPTIONS"]) == ("p@s/:", {"sslmode": "require"})


@pytest.mark.parametrize("value", ["0", "65536", "http", "-1", "", "٣"])
def test_a_port_that_is_none_names_the_variable(value):
    with pytest.raises(BadSetting, match="ACME_PORT"):
        Env({"ACME_PORT": value}).number("ACME_PORT", 8000, 1, 2)
