"""Each reason that prevents a start is one sentence."""

import os
import socket
from pathlib import Path

import pytest

from acmeweb.services import locks, ports
from acmeweb.services.directories import InstanceDirectories
from acmeweb.services.preflight import CannotStart, check_disk, check_path, check_port, make_directories


@pytest.fixture
def taken():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_port_in_use_is_named_with_an_alternative(taken):
    with pytest.raises(CannotStart) as caught:
        check_port("127.0.0.1", taken)

    assert (
        str(caught.value) == f"Port {taken} on 127.0.0.1 is already in use. Choose another with ACME_PORT={taken + 1}."
    )


def test_free_port_passes():
    check_port("127.0.0.1", ports.pick())


def test_an_address_of_another_machine_is_named():
    with pytest.raises(CannotStart, match=r"ACME_BIND=192\.0\.2\.1 is not an address of this machine"):
        check_port("192.0.2.1", 8000)


def test_a_nearly_full_disk_is_named(tmp_path):
    with pytest.raises(CannotStart, match=r"has 499 MB of free disk space\. Acme needs 500 MB"):
        check_disk(tmp_path, free=lambda _: 499)


def test_sufficient_disk_space_passes(tmp_path):
    check_disk(tmp_path, free=lambda _: 500)


@pytest.mark.parametrize("name", ["a ;b", "my #1", "two\nlines"])
def test_path_that_supervisor_cannot_represent_is_refused(name):
    with pytest.raises(CannotStart, match="which Supervisor cannot handle"):
        check_path(Path("/home") / name)


@pytest.mark.parametrize("name", ["with space", "50%", "semi;colon", "it's"])
def test_other_unusual_paths_pass(name):
    check_path(Path("/home") / name)


def test_directories_are_created_and_secrets_are_private(tmp_path):
    place = InstanceDirectories(tmp_path / "var")

    make_directories(place)

    assert {path.stat().st_mode & 0o777 for path in (place.secrets, place.valkey)} == {0o700}
    assert place.log.stat().st_mode & 0o007 == 0
    assert place.run.is_dir() and place.log.is_dir()


def test_directory_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "var").write_text("a file is in the way")

    with pytest.raises(CannotStart, match=r"var cannot be created \(.*\)\. Choose another directory with ACME_VAR"):
        make_directories(InstanceDirectories(tmp_path / "var"))


def test_a_second_start_names_the_first(tmp_path):
    lock = tmp_path / "var" / "run" / "lock"
    lock.parent.mkdir(parents=True)

    with locks.instance_lock(lock), pytest.raises(CannotStart) as caught, locks.instance_lock(lock):
        pass

    assert f"Acme is already running in {tmp_path / 'var'} (process {os.getpid()})" in str(caught.value)


def test_released_lock_can_be_taken(tmp_path):
    with locks.instance_lock(tmp_path / "lock"):
        pass

    with locks.instance_lock(tmp_path / "lock"):
        pass


def test_previous_port_is_reused_while_it_is_free():
    last = ports.pick()

    assert ports.pick(last) == last


def test_a_port_outside_our_range_is_not_kept():
    assert ports.MIN_PORT <= ports.pick(5432) <= ports.MAX_PORT


def test_a_port_that_was_taken_meanwhile_is_not_kept():
    last = ports.pick()
    with socket.create_server(("127.0.0.1", last)):  # also while connections of an earlier server are in TIME_WAIT
        assert ports.pick(last) != last
