"""The table of programs and Supervisor's configuration, checked with Supervisor's own parser."""

import dataclasses
import os
import shlex
from contextlib import suppress

import pytest
from supervisor.options import ServerOptions

from acmeweb.services import parent_guard, ports, supervisor
from acmeweb.services.directories import InstanceDirectories
from acmeweb.services.preflight import make_directories
from acmeweb.services.programs import InstanceConfig, SupervisedProgram, program_table
from scheduling.simulation.kubernetes.options import parse_options
from scheduling.simulation.slurm.server import SHUTDOWN_TIMEOUT_S
from tests.patience import until

ALWAYS = ["workers", "web"]


@pytest.fixture
def wish(tmp_path):
    place = InstanceDirectories(tmp_path / "100% var; it's")
    make_directories(place)
    place.postgres.mkdir()
    return InstanceConfig(
        dirs=place, bind="127.0.0.1", port=8000, demo=True, postgres_port=21000, valkey_port=21001, cluster_port=21002
    )


def read(wish):
    """Return our configuration as parsed by Supervisor: group name -> {program name: its configuration}."""
    supervisor.write_configuration(wish.dirs, supervisor.configuration(wish.dirs, program_table(wish), 21003, "pass"))
    options = ServerOptions()
    options.realize(["-n", "-c", str(wish.dirs.run / "supervisord.conf")])
    return {group.name: {p.name: p for p in group.process_configs} for group in options.process_group_configs}


def names(programs):
    return [program.name for program in programs]


def test_servers_start_before_the_other_programs(wish):
    groups = read(wish)

    assert groups["postgres"]["postgres"].autostart and groups["valkey"]["valkey"].autostart
    assert not any(program.autostart for program in groups["acme"].values())
    assert set(ALWAYS) <= set(groups["acme"])


def test_clusters_of_the_demo_have_their_own_programs(wish):
    both = read(dataclasses.replace(wish, kubernetes_port=21004))["acme"]
    kalos = read(dataclasses.replace(wish, kubernetes_port=21004, cluster_port=0))["acme"]

    assert {"cluster", "kubernetes"} <= set(both)
    assert "kubernetes" in kalos and "cluster" not in kalos
    (wish.dirs.secrets / "kubernetes").write_text("token")
    words = shlex.split(both["kubernetes"].command)
    parse_options(words[words.index("scheduling.simulation.kubernetes.server") + 1 :])  # no option is unknown


def test_paths_with_odd_characters_survive(wish):
    command = read(wish)["valkey"]["valkey"].command

    assert shlex.split(command)[-1] == str(wish.dirs.run / "valkey.conf")


def test_every_program_is_guarded_and_holds_the_lock(wish):
    for programs in read(wish).values():
        for program in programs.values():
            assert program.stdout_logfile == str(wish.dirs.log / f"{program.name}.log")
            words = shlex.split(program.command)
            assert words[3] == parent_guard.__file__
            assert words[words.index("--hold") + 1] == str(wish.dirs.alive)


def test_children_of_postgres_are_not_signaled_directly(wish):
    groups = read(wish)

    assert groups["postgres"]["postgres"].stopasgroup is False
    assert all(program.stopasgroup for program in groups["acme"].values())


def test_the_cluster_has_time_to_end_its_jobs_before_it_is_killed(wish):
    cluster = read(wish)["acme"]["cluster"]

    assert cluster.stopwaitsecs > 3 + SHUTDOWN_TIMEOUT_S
    words = shlex.split(cluster.command)
    assert words[words.index("--token-file") + 1] == str(wish.dirs.cluster_token)


def test_cluster_gets_its_job_age_and_accounting_options(wish):
    told = dataclasses.replace(wish, cluster_min_job_age_s=5, cluster_accounting=False)

    by_default, words = (shlex.split(read(one)["acme"]["cluster"].command) for one in (wish, told))

    assert by_default[by_default.index("--min-job-age") + 1] == "300"
    assert words[words.index("--min-job-age") + 1] == "5"
    assert ("--no-accounting" in by_default, "--no-accounting" in words) == (False, True)


@pytest.mark.parametrize(("port", "name"), [("postgres_port", "postgres"), ("valkey_port", "valkey")])
def test_embedded_server_is_not_started_if_an_external_one_is_set(wish, port, name):
    assert name not in names(program_table(dataclasses.replace(wish, **{port: 0})))


def test_simulated_users_run_only_in_the_demo(wish):
    assert "demo" not in names(program_table(dataclasses.replace(wish, demo=False)))


def test_configuration_file_is_private(wish):
    read(wish)

    assert os.stat(wish.dirs.run / "supervisord.conf").st_mode & 0o777 == 0o600


def test_last_lines_of_a_log_are_returned(tmp_path):
    (tmp_path / "web.log").write_text("one\ntwo\nthree\n")

    assert supervisor.last_lines(tmp_path / "web.log", 2) == "    two\n    three"
    assert supervisor.last_lines(tmp_path / "none.log") == ""


def test_a_server_can_be_stopped_and_started_again_by_its_name(tmp_path):
    place = InstanceDirectories(tmp_path / "var")
    make_directories(place)
    sleeper = SupervisedProgram(name="database", words=("sleep", "600"), orphaned="KILL", server=True)
    port = ports.pick()
    supervisor.write_configuration(place, supervisor.configuration(place, [sleeper], port, "pass"))
    process, runner = supervisor.start(place, os.environ), supervisor.SupervisorClient(port, "pass")

    def is_in(state):
        with suppress(supervisor.SupervisorUnavailable):
            return [(seen.name, seen.state) for seen in runner.programs()] == [("database", state)]

    try:
        until(lambda: is_in("RUNNING"), what="the program does not run")

        runner.stop("database")
        assert is_in("STOPPED")

        runner.start("database")
        until(lambda: is_in("RUNNING"), what="the program does not run again")
    finally:
        process.kill()
        process.wait()
        runner.close()
