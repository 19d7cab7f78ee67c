"""Files that a simulated job leaves: the effects file, and the attempt record next to its log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs.core.lifecycle import State
from scheduling.simulation.machines.effects import EFFECTS_FILE_NAME, EffectsFile
from scheduling.simulation.machines.execution.attempt_records import ALREADY_STARTED_MESSAGE, AttemptRecords
from scheduling.simulation.machines.scripts.logs import JobLogWriter
from scheduling.simulation.machines.scripts.play import SimulatedExecutor
from scheduling.simulation.machines.values import ProcessExit, SimulatedJob
from scheduling.simulation.slurm.controller import ClusterController
from tests.scheduling.simulation.machines.make import NODES, NOW, request

from .make import after, snapshot

A = NODES[0]


class Site:
    """A simulated cluster with its files; `start` restarts it from a snapshot, like a server that was killed."""

    def __init__(self, home: Path) -> None:
        self.home, self.logs, self.offset_s = home, home / "logs", 0.0
        self.logs.mkdir()
        self.start(ClusterController(snapshot(), SimulatedExecutor(), NOW))

    def start(self, before: ClusterController) -> None:
        records = AttemptRecords(self.logs, clock_offset_s=lambda: self.offset_s)
        executor = SimulatedExecutor(stage=JobLogWriter(self.logs, records), effects=EffectsFile(self.home))
        self.controller = ClusterController(before.take_snapshot(), executor, NOW)

    def submit(
        self, key: str = "k3v9q2m7:j1.1", *, end: str = "COMPLETED", seconds: float = 100.0, at: float = NOW, **changed
    ) -> SimulatedJob:
        log = str(self.logs / "j1-1.log")
        environment = {"SIM_DURATION_S": str(seconds), "SIM_END": end, "ACME_ATTEMPT_RECORD": f"{log}.acme"}
        plain = {"comment": f"acme:{key}", "stdout": log, "environment": environment}
        return self.controller.submit(request(A, **{**plain, **changed}), at)

    @property
    def effects(self) -> list[tuple[str, int, int | None, int | None]]:
        lines = (json.loads(line) for line in (self.home / EFFECTS_FILE_NAME).read_text().splitlines())
        return [(line["event"], line["job_id"], line["exit_code"], line["signal"]) for line in lines]

    @property
    def record(self) -> dict[str, str]:
        directory = self.logs / "j1-1.log.acme"
        return {file.name: file.read_text() for file in directory.iterdir()} if directory.exists() else {}


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_effect_has_the_job_its_key_and_the_time(site):
    job = site.submit("k3v9q2m7:0vqrm34vg06.2", seconds=5)

    after(site.controller, 50, job)

    start, end = (json.loads(line) for line in (site.home / EFFECTS_FILE_NAME).read_text().splitlines())
    plain = {"job_id": job.id, "key": "k3v9q2m7:0vqrm34vg06.2"}
    assert start == {**plain, "event": "start", "at": NOW + 1, "exit_code": None, "signal": None}
    assert end == {**plain, "event": "end", "at": NOW + 6, "exit_code": 0, "signal": None}


@pytest.mark.parametrize(
    ("end", "code", "signal", "recorded"),
    [("COMPLETED", 0, None, "0"), ("FAILED:3", 3, None, "3"), ("OUT_OF_MEMORY", None, 9, "137")],
)
def test_record_contains_the_exit_code_of_the_command(site, end, code, signal, recorded):
    job = site.submit(end=end, seconds=5)

    after(site.controller, 50, job)

    assert site.effects[-1] == ("end", job.id, code, signal)
    assert site.record == {"start": f"{job.id} {A} {int(NOW) + 1}\n", "exit": f"{recorded} {int(NOW) + 6}\n"}


def test_running_job_has_a_start_and_no_exit(site):
    job = site.submit()

    after(site.controller, 50, job)

    assert list(site.record) == ["start"]
    assert site.effects == [("start", job.id, None, None)]


def test_record_of_a_cancelled_job_has_the_signal(site):
    job = site.submit()
    after(site.controller, 50, job)

    site.controller.cancel(job.id, NOW + 50)

    assert after(site.controller, 60, job).exit == ProcessExit(signal=15)
    assert site.effects[-1] == ("end", job.id, None, 15)
    assert site.record["exit"] == f"143 {int(NOW) + 50}\n"


def test_job_that_succeeds_while_it_is_cancelled_keeps_its_own_exit_code(site):
    job = site.submit(seconds=49.2)
    after(site.controller, 50, job)

    site.controller.cancel(job.id, NOW + 50)

    ended = after(site.controller, 60, job)
    assert (ended.state, ended.exit) == (State.CANCELLED, ProcessExit(code=0))
    assert site.effects[-1] == ("end", job.id, 0, None)


@pytest.mark.parametrize("how", ["played", "set down"])
def test_lost_node_leaves_no_exit_code(site, how):
    job = site.submit(end="NODE_FAIL" if how == "played" else "COMPLETED", seconds=49 if how == "played" else 49.2)
    after(site.controller, 49.9, job)

    if how == "set down":
        site.controller.set_down(A, "power", "ada", NOW + 50)

    assert after(site.controller, 60, job).state == State.NODE_FAIL
    assert list(site.record) == ["start"]
    assert site.effects[-1] == ("end", job.id, None, 9)


def test_attempt_starts_once_even_if_it_is_submitted_again(site):
    first = site.submit(seconds=5)
    after(site.controller, 50, first)
    log = (site.logs / "j1-1.log").read_text()

    again = site.submit(at=NOW + 50)

    ended = after(site.controller, 100, again)
    assert (ended.state, ended.exit) == (State.FAILED, ProcessExit(code=97))
    assert site.effects == [("start", first.id, None, None), ("end", first.id, 0, None)]
    assert (site.logs / "j1-1.log").read_text() == f"{log}{ALREADY_STARTED_MESSAGE}\n"
    assert site.record["start"].startswith(f"{first.id} ")


def test_record_without_a_start_line_prevents_a_start(site):
    (site.logs / "j1-1.log.acme").mkdir()

    ended = after(site.controller, 50, site.submit())

    assert ended.exit == ProcessExit(code=97)
    assert site.effects == []


def test_start_interrupted_by_a_crash_is_repeated(site):
    job = site.submit(seconds=5)
    configuring = ClusterController(site.controller.take_snapshot(), SimulatedExecutor(), NOW)
    site.controller.advance_to(NOW + 3)

    site.start(configuring)

    assert after(site.controller, 50, job).state == State.COMPLETED
    assert site.effects == [("start", job.id, None, None)] * 2 + [("end", job.id, 0, None)]


@pytest.mark.parametrize("moment", [2.0, 6.1, 50.0])
def test_restarted_server_reports_an_end_that_was_due(site, moment):
    job = site.submit(seconds=5, end="FAILED:3")
    site.controller.advance_to(NOW + moment)

    site.start(site.controller)

    assert after(site.controller, 60, job).exit == ProcessExit(code=3)
    assert set(site.effects) == {("start", job.id, None, None), ("end", job.id, 3, None)}
    assert site.record["exit"] == f"3 {int(NOW) + 6}\n"


@pytest.mark.parametrize("refused", [True, False])
def test_restarted_server_reports_no_end_of_a_job_that_never_started(site, refused):
    if refused:
        (site.logs / "j1-1.log.acme").mkdir()
    job = site.submit(**({} if refused else {"stdout": "/etc/acme.log"}))
    assert after(site.controller, 1.1, job).is_completing

    site.start(site.controller)

    assert not after(site.controller, 60, job).is_completing
    assert site.effects == []


@pytest.mark.parametrize("requested", ["", "/etc/cron.d", "{logs}/j2-1.log.acme", "{logs}/../j1-1.log.acme"])
def test_record_is_next_to_the_jobs_own_log_or_not_written(site, requested):
    environment = {
        "SIM_DURATION_S": "5",
        "SIM_END": "COMPLETED",
        "ACME_ATTEMPT_RECORD": requested.format(logs=site.logs),
    }

    job = site.submit(environment=environment)

    assert after(site.controller, 50, job).state == State.COMPLETED
    assert sorted(path.name for path in site.logs.iterdir()) == ["j1-1.log"]


def test_link_in_place_of_the_record_is_not_followed(site, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (site.logs / "j1-1.log.acme").symlink_to(elsewhere)

    job = site.submit(seconds=5)

    assert after(site.controller, 50, job).state == State.COMPLETED
    assert list(elsewhere.iterdir()) == []


def test_record_uses_the_clock_of_the_cluster_and_effects_the_true_time(site):
    site.offset_s = 300.0
    site.controller.set_clock_offset(300.0)
    job = site.submit(seconds=5)

    after(site.controller, 50, job)

    assert site.record["exit"] == f"0 {int(NOW) + 306}\n"
    assert json.loads((site.home / EFFECTS_FILE_NAME).read_text().splitlines()[-1])["at"] == NOW + 6
    assert (site.logs / "j1-1.log").read_text().startswith("[2027-01-15 08:05:")


def test_incomplete_line_of_the_effects_file_is_terminated(tmp_path):
    (tmp_path / EFFECTS_FILE_NAME).write_text('{"event":"st')
    effects = EffectsFile(tmp_path)
    job = SimulatedJob(id=1, request=request(A), submitted_at=NOW)

    effects.record_start(job, NOW)

    half, whole = (tmp_path / EFFECTS_FILE_NAME).read_text().splitlines()
    assert (half, json.loads(whole)["job_id"]) == ('{"event":"st', 1)
    effects.close()


def test_large_effects_file_is_moved_away_at_start(tmp_path):
    (tmp_path / EFFECTS_FILE_NAME).write_text("x" * 11)

    EffectsFile(tmp_path, most_bytes=10).close()

    assert (tmp_path / EFFECTS_FILE_NAME).read_text() == ""
    assert (tmp_path / f"{EFFECTS_FILE_NAME}.old").read_text() == "x" * 11
