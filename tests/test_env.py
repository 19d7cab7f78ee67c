"""Settings: precedence of the environment over the file, secret files, and messages for invalid values."""

import os
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import connection
from psycopg.conninfo import conninfo_attempts, conninfo_to_dict

from acmeweb.common.env import (
    ROLE_TIMEOUTS,
    EnvReader,
    InvalidEnvSetting,
    cluster_min_job_age_s,
    database_role,
    database_settings,
    demo_clusters,
    with_password,
    with_timeouts,
)

SCHEMES = ("redis", "valkey")
SETTINGS = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")


def test_the_environment_wins_over_the_file():
    env = EnvReader({"SECRET_KEY": "real"}, {"SECRET_KEY": "file", "ACME_HOSTS": "a"})

    assert (env.text("SECRET_KEY"), env.text("ACME_HOSTS")) == ("real", "a")


def test_a_secret_comes_from_the_file_it_names(tmp_path):
    (tmp_path / "key").write_text("from a file\n")

    assert EnvReader({"SECRET_KEY_FILE": str(tmp_path / "key")}).text("SECRET_KEY") == "from a file"


def test_secret_file_of_the_environment_overrides_the_plain_value_of_the_file(tmp_path):
    (tmp_path / "key").write_text("given")

    assert (
        EnvReader({"SECRET_KEY_FILE": str(tmp_path / "key")}, {"SECRET_KEY": "beneath"}).text("SECRET_KEY") == "given"
    )


def test_a_secret_file_that_is_missing_is_named():
    with pytest.raises(InvalidEnvSetting, match="SECRET_KEY_FILE='/no/such': cannot be read"):
        EnvReader({"SECRET_KEY_FILE": "/no/such"}).text("SECRET_KEY")


def test_alias_in_the_environment_overrides_the_name_in_the_file():
    env = EnvReader({"REDIS_URL": "redis://given"}, {"VALKEY_URL": "redis://beneath"})

    assert env.url(("VALKEY_URL", "REDIS_URL"), SCHEMES).hostname == "given"


def test_a_wrong_scheme_is_refused_without_showing_the_password():
    with pytest.raises(InvalidEnvSetting) as caught:
        EnvReader({"VALKEY_URL": "http://u:hidden@host"}).url(("VALKEY_URL",), SCHEMES)

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


def test_url_without_a_password_is_unchanged():
    assert with_password(urlsplit("redis://valkey/0"), "").geturl() == "redis://valkey/0"


def test_django_gets_the_password_unquoted():
    parts = with_password(urlsplit("postgresql://acme@db:5432/acme?sslmode=require"), "p@s/:")

    described = database_settings(parts)

    assert (described["PASSWORD"], described["OPTIONS"]) == ("p@s/:", {"sslmode": "require"})


@pytest.mark.parametrize(
    ("place", "host", "port"),
    [
        ("h1:5432,h2:5433", "h1,h2", "5432,5433"),
        ("h1:5432,h2", "h1,h2", "5432,"),
        ("h1,h2,h3", "h1,h2,h3", ""),
        ("db.example.org", "db.example.org", ""),
        ("db:6000", "db", "6000"),
        ("[::1]:5432", "::1", "5432"),
        ("[::1]", "::1", ""),
        ("%2Fvar%2Frun%2FPostgreSQL", "/var/run/PostgreSQL", ""),
        ("", "", ""),
    ],
)
def test_one_database_server_or_several_are_named(place, host, port):
    url = f"postgresql://acme:p%40s@{place}/acme?target_session_attrs=read-write"

    described = database_settings(EnvReader({"DATABASE_URL": url}).url(("DATABASE_URL",), ("postgresql",)))

    assert (described["HOST"], described["PORT"], described["NAME"]) == (host, port, "acme")
    assert (described["USER"], described["PASSWORD"]) == ("acme", "p@s")
    assert described["OPTIONS"] == {"target_session_attrs": "read-write"}


def test_driver_accepts_several_database_servers():
    described = database_settings(urlsplit("postgresql://acme@127.0.0.1:5433,127.0.0.2/acme"))

    attempts = conninfo_attempts(conninfo_to_dict(host=described["HOST"], port=described["PORT"]))

    assert [(one["host"], one.get("port") or "5432") for one in attempts] == [
        ("127.0.0.1", "5433"),
        ("127.0.0.2", "5432"),
    ]


@pytest.mark.django_db
def test_next_database_server_is_used_if_the_first_is_unavailable():
    here = connection.settings_dict
    place = f"127.0.0.1:1,{here['HOST']}:{here['PORT']}"
    described = database_settings(urlsplit(f"postgresql://{place}/{here['NAME']}?target_session_attrs=read-write"))

    with psycopg.connect(
        host=described["HOST"],
        port=described["PORT"],
        user=here["USER"],
        password=here["PASSWORD"],
        dbname=described["NAME"],
        **described["OPTIONS"],
    ) as session:
        assert session.info.port == int(here["PORT"])


@pytest.mark.parametrize(
    "url",
    ["postgresql://u:hidden@h1:abc,h2:5432/db", "postgresql://u:hidden@h:0/db", "postgresql://u:hidden@h:99999/db"],
)
def test_invalid_database_port_is_refused_without_showing_the_password(url):
    with pytest.raises(InvalidEnvSetting, match=r"DATABASE_URL=.* is not a port") as caught:
        database_settings(EnvReader({"DATABASE_URL": url}).url(("DATABASE_URL",), ("postgresql",)))

    assert "hidden" not in str(caught.value)


def test_unparsable_url_is_refused_without_showing_the_password():
    with pytest.raises(InvalidEnvSetting, match=r"DATABASE_URL='.*': is not a URL") as caught:
        EnvReader({"DATABASE_URL": "postgresql://u:hidden@[::1/db"}).url(("DATABASE_URL",), ("postgresql",))

    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("value", ["0", "86401", "1.5", "-5", "", "5m", "٣"])
def test_invalid_job_age_names_the_variable(value):
    with pytest.raises(
        InvalidEnvSetting, match=r"ACME_CLUSTER_MIN_JOB_AGE=.* is not a whole number of seconds from 1 to"
    ):
        cluster_min_job_age_s(EnvReader({"ACME_CLUSTER_MIN_JOB_AGE": value}))


def test_demo_has_both_clusters_unless_one_is_chosen():
    assert demo_clusters(EnvReader({})) == ("seren", "kalos")
    assert demo_clusters(EnvReader({"DEMO_CLUSTERS": " kalos ,"})) == ("kalos",)


@pytest.mark.parametrize("value", ["saturn", "seren,saturn", ","])
def test_unknown_demo_clusters_name_the_variable(value):
    with pytest.raises(SystemExit, match="DEMO_CLUSTERS"):
        demo_clusters(EnvReader({"DEMO_CLUSTERS": value}))


def test_the_job_age_is_that_of_slurm_unless_it_is_set():
    assert cluster_min_job_age_s(EnvReader({})) == 300
    assert cluster_min_job_age_s(EnvReader({"ACME_CLUSTER_MIN_JOB_AGE": "5"})) == 5


@pytest.mark.parametrize("value", ["0", "65536", "http", "-1", "", "٣"])
def test_invalid_port_names_the_variable(value):
    with pytest.raises(InvalidEnvSetting, match="ACME_PORT"):
        EnvReader({"ACME_PORT": value}).number("ACME_PORT", 8000, 1, 2)


@pytest.mark.parametrize("value", ["tokens", "/", "/a,b"])
def test_a_directory_is_an_absolute_path_below_the_root(value):
    with pytest.raises(InvalidEnvSetting, match="is not an absolute path of a directory"):
        EnvReader({"ACME_TOKEN_DIRS": value}).directories("ACME_TOKEN_DIRS")


def test_empty_directories_mean_the_default():
    assert EnvReader({"ACME_TOKEN_DIRS": ""}).directories("ACME_TOKEN_DIRS", "/a,/b") == ["/a", "/b"]


def test_an_unknown_role_names_the_variable():
    with pytest.raises(InvalidEnvSetting, match="ACME_ROLE='webb': is not one of web, loops, long"):
        database_role(EnvReader({"ACME_ROLE": "webb"}))


def test_a_process_without_a_role_has_no_timeouts():
    assert with_timeouts("-c work_mem=64MB", database_role(EnvReader({}))) == "-c work_mem=64MB"


@pytest.mark.parametrize(
    ("name", "lock", "statement", "idle"),
    [("web", "5s", "20s", "30s"), ("loops", "10s", "40s", "1min"), ("long", "30s", "5min", "2min")],
)
def test_postgresql_takes_the_timeouts_of_each_role(name, lock, statement, idle):
    with psycopg.connect(os.environ["DATABASE_URL"], options=with_timeouts("", name)) as session:
        shown = [session.execute(f"SHOW {setting}").fetchone()[0] for setting in SETTINGS]

    assert shown == [lock, statement, idle]


def test_timeouts_in_the_database_url_take_precedence():
    with psycopg.connect(os.environ["DATABASE_URL"], options=with_timeouts("-c lock_timeout=7s", "web")) as session:
        assert session.execute("SHOW lock_timeout").fetchone() == ("7s",)


@pytest.mark.parametrize("name", sorted(ROLE_TIMEOUTS))
def test_a_wait_for_a_lock_ends_before_its_statement_does(name):
    assert ROLE_TIMEOUTS[name].lock_s < ROLE_TIMEOUTS[name].statement_s
