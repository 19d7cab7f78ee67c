"""The user ids of an instance, and the warning if they are not separate."""

import os
import shutil
import subprocess
import sys

import pytest

from acmeweb.common.env import ROOT, EnvReader
from acmeweb.services import ownership, users
from acmeweb.services.preflight import CannotStart
from acmeweb.services.users import ServiceUsers

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give programs users of their own")


def test_numbered_ids_are_all_different_and_lie_in_one_range():
    them = users.from_base(70_000)

    first, last = map(int, them.jobs.split("-"))
    fixed = {int(them.acme), int(them.postgres), int(them.valkey)}
    assert len(fixed) == 3 and fixed.isdisjoint(range(first, last + 1))
    assert min(fixed) == 70_000 and last == 70_000 + users.UID_RANGE_SIZE - 1


@pytest.mark.parametrize("number", [70_000, 70_000 + users.UID_RANGE_SIZE - 1])
def test_id_in_use_is_refused_with_its_name(number):
    with pytest.raises(CannotStart, match=f"ACME_UID_BASE=70000: .* {number} is the user ada"):
        users.check_free(70_000, {number: "ada"}, "user")


def test_ids_outside_the_range_may_be_in_use():
    users.check_free(70_000, {69_999: "ada", 70_000 + users.UID_RANGE_SIZE: "bob"}, "user")


@pytest.mark.skipif(not shutil.which("unshare"), reason="no program here makes user namespaces")
def test_root_of_a_container_that_maps_one_user_is_told_what_to_do():
    choose = "from acmeweb.common.env import EnvReader; from acmeweb.services import users; users.choose(EnvReader({}))"
    words = ["unshare", "--user", "--map-root-user", sys.executable, "-c", choose]

    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)

    assert "CannotStart: Root cannot run programs as user id 60600 here (" in done.stderr
    assert "start Acme as an ordinary user." in done.stderr


@as_root
def test_base_comes_from_the_environment():
    assert users.choose(EnvReader({"ACME_UID_BASE": "70000"})) == users.from_base(70_000)


def test_shared_user_is_named_with_what_jobs_could_do():
    warning = users.shared_user_warning(ServiceUsers(), runs_jobs=True)

    assert warning.startswith("Not isolated: jobs, Acme and its database all run as the user")
    assert "\n" not in warning


@pytest.mark.parametrize(("them", "runs_jobs"), [(users.from_base(70_000), True), (ServiceUsers(), False)])
def test_no_warning_if_nothing_is_shared(them, runs_jobs):
    assert users.shared_user_warning(them, runs_jobs) == ""


@as_root
def test_change_of_owner_applies_to_links_and_not_their_targets(tmp_path):
    (tmp_path / "tree" / "below").mkdir(parents=True)
    (tmp_path / "other").touch()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "other")

    ownership.change_owner(tmp_path / "tree", "70001", group="70000")

    given = [tmp_path / "tree", tmp_path / "tree" / "below", tmp_path / "tree" / "link"]
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in given} == {(70_001, 70_000)}
    assert (tmp_path / "other").stat().st_uid == 0


@as_root
def test_interrupted_change_of_owner_is_completed(tmp_path):
    (tmp_path / "tree" / "below").mkdir(parents=True)
    os.chown(tmp_path / "tree" / "below", 70_001, 70_001)

    ownership.change_owner(tmp_path / "tree", "70001")

    assert (tmp_path / "tree").stat().st_uid == 70_001
