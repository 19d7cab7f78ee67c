"""The users of the programs if root starts `make up`, and the owners of files of earlier versions."""

import os
import pwd
import shutil
import tempfile
from pathlib import Path

import pytest

from acmeweb.services import users
from scheduling.simulation.machines.execution.accounts import DEFAULT_UIDS
from tests.acceptance.instance import Instance
from tests.patience import PATIENCE_S, until

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give programs users of their own"),
]
THEIRS = users.default()
NOBODY = pwd.getpwnam("nobody")


def uid(instance, name):
    return str(os.stat(f"/proc/{instance.pids()[name]}").st_uid)


def chown_all(directory, user):
    for path in (directory, *directory.rglob("*")):
        os.chown(path, *user, follow_symlinks=False)


@pytest.fixture(scope="module")
def local(prepared):
    with tempfile.TemporaryDirectory(prefix="acme-instance-") as home:
        os.chmod(home, 0o755)  # the database does not run as root
        instance = Instance(Path(home) / "a var")
        shutil.copytree(prepared.var, instance.place.var)
        try:
            instance.start(DEMO="0").ready()
            yield instance
        finally:
            instance.end()


def test_programs_run_as_separate_users_and_read_the_cluster(local):
    assert {uid(local, name) for name in ("web", "workers")} == {THEIRS.acme}
    assert (uid(local, "postgres"), uid(local, "valkey")) == (THEIRS.postgres, THEIRS.valkey)
    assert uid(local, "cluster") == "0"
    until(lambda: local.sql("SELECT 1 FROM jobs_node").fetchone(), what="the workers never saw the node")


def test_demo_needs_root_only_for_the_process_runner(instance):
    instance.start(DEMO="1", DEMO_HISTORY_DAYS="1").ready()

    assert {uid(instance, name) for name in ("web", "workers", "demo", "cluster")} == {THEIRS.acme}
    until(lambda: instance.sql("SELECT 1 FROM jobs_node").fetchone(), what="the workers never saw a node")
    # The process that writes the history gives way to every other one, so beside other tests it takes minutes
    until(lambda: instance.sql("SELECT 1 FROM jobs_job WHERE id < 100000").fetchone(), 900, "it has no history")


def test_files_of_an_earlier_version_change_their_owner(instance):
    instance.start(DEMO="0").ready()
    assert instance.stop() == 0
    for directory in (instance.place.postgres, instance.place.cluster):
        chown_all(directory, (NOBODY.pw_uid, NOBODY.pw_gid))
    chown_all(instance.place.valkey, (0, 0))
    shutil.rmtree(instance.place.var / "work", ignore_errors=True)

    instance.start(DEMO="0").ready()

    assert uid(instance, "postgres") == THEIRS.postgres
    assert str((instance.place.cluster / "cluster.sqlite3").stat().st_uid) == "0"


def test_ids_in_use_are_reported_in_one_sentence(instance):
    instance.start(ACME_UID_BASE=str(NOBODY.pw_uid - 10))

    assert instance.process.wait(timeout=PATIENCE_S) == 1
    assert "must be unused, and 65534 is the user nobody. Choose another base." in instance.said()


def test_job_cannot_access_the_instance(local):
    place, pids = local.place, local.pids()
    files = (place.secrets / "*", place.env, place.valkey_conf, place.run / "supervisord.conf", place.postgres / "*")
    reads = [f"cat {str(path).replace(' ', '?')}" for path in files]
    reads += [f"cat /proc/{pid}/environ" for pid in pids.values()]
    signals = [f"kill -CONT {pid} && echo reached" for pid in pids.values()]
    writes = [f"echo reached >> {str(path).replace(' ', '?')}/x" for path in (place.var, place.cluster, place.work)]

    said = local.job("; ".join([*reads, *signals, *writes, "id -u", "echo END"]))

    uid, end = said.splitlines()[-2:]
    assert (int(uid) in DEFAULT_UIDS, end) == (True, "END")
    assert "reached" not in said and "SECRET_KEY=" not in said
    assert not any((place.secrets / name).read_text().strip() in said for name in ("postgres", "cluster", "valkey"))
    assert not any((directory / "x").exists() for directory in (place.var, place.cluster, place.work))


def test_ordinary_user_is_warned_about_missing_isolation():
    with tempfile.TemporaryDirectory(prefix="acme-ordinary-") as home:
        os.chown(home, NOBODY.pw_uid, NOBODY.pw_gid)
        instance = Instance(Path(home) / "var")
        instance.start(DEMO="0", user="nobody")
        try:
            instance.ready()
            assert "Not isolated: jobs, Acme and its database all run as the user nobody." in instance.said()
            assert uid(instance, "postgres") == str(NOBODY.pw_uid)
            assert instance.stop() == 0
        finally:
            instance.end()
