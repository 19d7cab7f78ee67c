"""The loop `pod_logs`: the output of jobs on Kubernetes becomes their log, which the rest of Acme reads as usual."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from acmeweb.common.errors import InvalidInput
from failures.loops.diagnose import diagnose_once
from failures.loops.follow import follow_once
from failures.models import Diagnosis
from jobs.actions import jobs as job_actions
from jobs.actions.jobs import AttemptEnd
from jobs.core.lifecycle import State
from jobs.logs import allowed_paths, copied_log, job_log
from jobs.logs.log_source import LogSource
from jobs.models import Attempt, Cluster, clock
from scheduling.backends.base import ClusterUnreachable, LogUpdate, RequestRejected
from scheduling.backends.kubernetes.backend import KUBERNETES_TRAITS
from scheduling.loops.observe.outcomes import find_outcomes_once
from scheduling.loops.pod_logs import (
    GIVE_UP_AFTER,
    RETRY_S,
    CopyMemory,
    PendingLog,
    clusters_with_pending_logs,
    copy_logs_once,
    delete_old_logs_once,
)
from tests import make
from tests.scheduling.fake import FakeCluster


class PrintingCluster(FakeCluster):
    """A cluster whose jobs print what a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.traits = KUBERNETES_TRAITS
        self.output: dict[str, list[str]] = {}
        self.complete: set[str] = set()
        self.asked: list[str] = []
        self.errors: dict[str, Exception] = {}

    def print(self, attempt, *lines):
        self.output.setdefault(attempt.backend_id, []).extend(lines)

    def new_log_lines(self, backend_id, positions):
        self.asked.append(backend_id)
        if error := self.errors.get(backend_id):
            raise error
        lines = self.output.get(backend_id, [])
        read = int(positions.get("pod", "0"))
        texts = {"pod": str(len(lines))} if lines else {}
        return LogUpdate(lines=lines[read:], positions=texts, is_complete=backend_id in self.complete)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def cluster(db, settings, tmp_path):
    settings.VAR = tmp_path / "var"
    return make.cluster("kalos", address="kubernetes:///etc/acme/tokens/kalos", log_root="")


@pytest.fixture
def kalos():
    return PrintingCluster()


@pytest.fixture
def passing():
    return Clock()


@pytest.fixture
def copy(cluster, kalos, passing):
    memory = CopyMemory(passing)

    def turn(now=None, memory=memory, **options):
        passing.seconds += 60
        return copy_logs_once(cluster, kalos, now or clock.now(), memory, **options)

    return turn


def printing(cluster, gpu=0, **job):
    made = make.running(make.job(cluster=cluster, gpus_per_node=1, **job), gpus=(gpu,))
    path = cluster.new_log_path(f"a-{made.pk}")
    Attempt.objects.filter(pk=made.pk).update(log_path=path, log_pending=True)
    made.refresh_from_db()
    return made


def end(attempt, state=State.FAILED, at=None, exit_code=1):
    ending = AttemptEnd(state=state, at=at or clock.now(), exit_code=exit_code)
    job_actions.finish(attempt, ending, author=make.LOOP)
    attempt.refresh_from_db()


def text(attempt):
    return Path(attempt.log_path).read_text()


# --- which logs


def test_new_attempt_on_kubernetes_has_a_log_that_acme_writes(cluster):
    assert cluster.has_logs
    assert cluster.new_log_path("a") == f"{allowed_paths.pod_log_directory()}/kalos/a.log"


def test_only_clusters_with_pending_logs_are_read(cluster):
    assert clusters_with_pending_logs() == []

    printing(cluster)

    assert clusters_with_pending_logs() == [cluster.pk]


def test_complete_logs_are_not_read(cluster, kalos, copy):
    running, ended, complete = (printing(cluster, gpu) for gpu in range(3))
    end(ended)
    Attempt.objects.filter(pk=complete.pk).update(log_pending=False)

    assert copy() == 2
    assert sorted(kalos.asked) == sorted([running.backend_id, ended.backend_id])


def test_logs_of_ended_attempts_come_first_then_those_that_are_due_longest(passing):
    memory = CopyMemory(passing)
    source = LogSource("/logs", "/logs/a.log")
    ends = [None, None, make.NOON, None]
    logs = [PendingLog(attempt_id=n, key="k", backend_id="b", source=source, ended_at=at) for n, at in enumerate(ends)]
    memory.due(logs)
    for number, due_at in enumerate((-1.0, -2.0, 0.0, 60.0)):
        memory.paces[number].due_at = due_at

    assert [one.attempt_id for one in memory.due(logs)] == [2, 1, 0]


def test_attempt_that_was_never_submitted_has_nothing_to_copy(cluster, kalos, copy):
    attempt = printing(cluster)
    Attempt.objects.filter(pk=attempt.pk).update(backend_id="")
    end(attempt)

    copy()

    attempt.refresh_from_db()
    assert not attempt.log_pending and kalos.asked == []


def test_log_with_new_lines_is_read_more_often_than_a_quiet_one(cluster, kalos, passing):
    busy, quiet = printing(cluster, 0), printing(cluster, 1)
    memory = CopyMemory(passing)
    for number in range(60):
        kalos.print(busy, f"line {number}")
        copy_logs_once(cluster, kalos, clock.now(), memory)
        passing.seconds += 1

    assert kalos.asked.count(busy.backend_id) > 2 * kalos.asked.count(quiet.backend_id) > 2


def test_cluster_whose_jobs_write_their_logs_has_nothing_to_copy(cluster, slurm):
    attempt = printing(cluster)

    copy_logs_once(cluster, slurm, clock.now(), CopyMemory())

    attempt.refresh_from_db()
    assert not attempt.log_pending


# --- what is written


def test_output_is_appended_and_a_complete_log_is_not_read_again(cluster, kalos, copy):
    attempt = printing(cluster)
    kalos.print(attempt, "one", "two")
    copy()
    kalos.print(attempt, "three", "acme: end of the log of 1 pod: FAILED")
    kalos.complete.add(attempt.backend_id)
    end(attempt)

    copy()

    attempt.refresh_from_db()
    assert text(attempt).splitlines() == ["one", "two", "three", "acme: end of the log of 1 pod: FAILED"]
    assert not attempt.log_pending and clusters_with_pending_logs() == []


def test_another_process_continues_where_the_first_one_stopped(cluster, kalos, copy):
    attempt = printing(cluster)
    kalos.print(attempt, "one")
    copy()
    kalos.print(attempt, "two")

    copy(memory=CopyMemory())

    assert text(attempt) == "one\ntwo\n"


def test_process_with_an_old_memory_reads_the_position_again(cluster, kalos, copy):
    attempt = printing(cluster)
    kalos.print(attempt, "one")
    copy()
    kalos.print(attempt, "two")
    copy(memory=CopyMemory())
    kalos.print(attempt, "three")

    copy()  # its position is that of the first line
    copy()

    assert text(attempt) == "one\ntwo\nthree\n"


def test_killed_copy_is_repeated_without_a_gap(cluster, kalos, copy):
    attempt = printing(cluster)
    kalos.print(attempt, "one")
    copy()
    with Path(attempt.log_path).open("a") as log:
        log.write("two\nthr")
    kalos.print(attempt, "two", "three")

    copy(memory=CopyMemory())

    assert text(attempt) == "one\ntwo\nthree\n"


def test_one_log_that_cannot_be_copied_does_not_stop_the_others(cluster, kalos, copy, passing):
    first, second, third = (printing(cluster, gpu) for gpu in range(3))
    for attempt in (first, second, third):
        kalos.print(attempt, "one")
    kalos.errors[first.backend_id] = RuntimeError("bug")
    Path(second.log_path).parent.mkdir(parents=True)
    os.mkfifo(second.log_path)

    copy()

    assert text(third) == "one\n"
    kalos.asked.clear()
    os.remove(second.log_path)
    kalos.errors.clear()
    passing.seconds += RETRY_S
    copy()
    assert (text(first), text(second)) == ("one\n", "one\n")


def test_unreachable_cluster_ends_the_turn(cluster, kalos, copy):
    attempts = [printing(cluster, gpu) for gpu in range(8)]
    for attempt in attempts:
        kalos.errors[attempt.backend_id] = ClusterUnreachable("no response")

    with pytest.raises(ClusterUnreachable):
        copy()

    assert Attempt.objects.with_pending_log().count() == 8


def test_log_in_acme_var_is_bounded_and_still_has_its_end(cluster, kalos, copy):
    attempt = printing(cluster)
    kalos.print(attempt, *(f"line {number} {'x' * 100}" for number in range(100)))
    copy(largest=4096)
    kalos.print(attempt, "more", "acme: pod a on node n1 ended: exit code 1", "acme: end of the log of 1 pod: FAILED")
    kalos.complete.add(attempt.backend_id)
    end(attempt)

    copy(largest=4096)

    lines = text(attempt).splitlines()
    assert os.path.getsize(attempt.log_path) < 5000 and "more" not in lines
    assert "longer than" in lines[-3] and lines[-1] == "acme: end of the log of 1 pod: FAILED"


def test_log_in_the_shared_directory_is_not_bounded(cluster, kalos, copy, tmp_path):
    (tmp_path / "shared").mkdir()
    Cluster.objects.update(log_root=str(tmp_path / "shared"))
    cluster.refresh_from_db()
    attempt = printing(cluster)
    kalos.print(attempt, "x" * 10_000)

    copy(largest=4096)

    assert os.path.getsize(f"{tmp_path}/shared/a-{attempt.pk}.log") == 10_001


def test_job_whose_pods_were_deleted_before_the_copy_has_one_line_about_it(cluster, kalos, copy):
    attempt = printing(cluster)
    end(attempt, at=clock.now() - GIVE_UP_AFTER - timedelta(minutes=1))

    copy()

    attempt.refresh_from_db()
    assert text(attempt) == "acme: the log of this job is not complete: its pods were deleted before it was copied\n"
    assert not attempt.log_pending


def test_job_that_ended_a_moment_ago_is_not_given_up(cluster, kalos, copy):
    attempt = printing(cluster)
    end(attempt)

    copy()

    attempt.refresh_from_db()
    assert attempt.log_pending and not Path(attempt.log_path).exists()


def test_rejection_concerns_one_log(cluster, kalos, copy):
    refused, other = printing(cluster, 0), printing(cluster, 1)
    kalos.errors[refused.backend_id] = RequestRejected("no")
    kalos.print(other, "one")

    copy()

    assert text(other) == "one\n"


# --- who reads it


@pytest.mark.parametrize("rank", ["", "0: "])
def test_log_page_and_follower_read_the_copy(cluster, kalos, copy, rank):
    attempt = printing(cluster, kind="pretrain")
    kalos.print(attempt, *(f"{rank}iteration {step}/100 | loss 2.{step} | step time 1.0 s" for step in range(10, 15)))

    copy()

    assert job_log.tail(attempt.log_source).text.count("iteration") == 5
    follow_once(clock.now())
    attempt.refresh_from_db()
    assert attempt.latest_progress.step == 14


def test_diagnosis_waits_for_the_last_lines(cluster, kalos, copy):
    attempt = printing(cluster)
    kalos.print(attempt, "iteration 10 | loss 2.1")
    copy()
    end(attempt, State.OUT_OF_MEMORY, exit_code=137)
    assert diagnose_once(clock.now()) == 0
    kalos.print(attempt, "acme: pod a on node n1 ended: OOMKilled, exit code 137")
    kalos.complete.add(attempt.backend_id)

    copy()
    diagnose_once(clock.now())

    assert Diagnosis.objects.get(attempt=attempt).root_cause == "HostOOMKilled"


def test_diagnosis_does_not_wait_for_ever(cluster, kalos, copy):
    attempt = printing(cluster)
    kalos.print(attempt, "KeyError: 'lr'")
    copy()
    end(attempt, at=clock.now() - timedelta(minutes=1))

    diagnose_once(clock.now())

    assert Diagnosis.objects.filter(attempt=attempt).exists()


def test_missing_log_does_not_prove_that_a_forgotten_attempt_never_started(cluster, kalos):
    """Acme writes the log, and had perhaps not begun."""
    attempt = printing(cluster)
    Attempt.objects.filter(pk=attempt.pk).update(confirmed_at=None, missing_since=clock.now() - timedelta(hours=1))

    find_outcomes_once(cluster, kalos, clock.now())

    attempt.refresh_from_db()
    assert attempt.state == State.UNKNOWN and attempt.job.attempts.count() == 1


def test_forgotten_attempt_has_the_end_that_its_log_shows(cluster, kalos, copy):
    attempt = printing(cluster)
    kalos.print(attempt, "done", "acme: end of the log of 1 pod: COMPLETED")
    copy()
    Attempt.objects.filter(pk=attempt.pk).update(missing_since=clock.now() - timedelta(hours=1))

    find_outcomes_once(cluster, kalos, clock.now())

    attempt.refresh_from_db()
    assert (attempt.state, attempt.job.state) == (State.COMPLETED, State.COMPLETED)


# --- where it lies


def test_users_cannot_enter_the_directory_of_copied_logs(cluster):
    allowed = allowed_paths.load_allowed_paths()

    for path in (allowed.pod_logs, f"{allowed.pod_logs}/kalos"):
        with pytest.raises(InvalidInput, match="ACME_VAR"):
            allowed.check_shared_directory(path)


def test_only_directories_of_clusters_are_opened_in_acme_var(cluster, kalos, copy, settings):
    attempt = printing(cluster)
    kalos.print(attempt, "one")
    copy()
    (settings.VAR / "secrets").mkdir()
    (settings.VAR / "secrets" / "key").write_text("secret")
    source = replace(attempt.log_source, root=str(settings.VAR / "secrets"), path="key")

    with pytest.raises(job_log.LogReadError, match="ACME_VAR"):
        job_log.tail(source)
    with pytest.raises(job_log.LogReadError, match="ACME_VAR"):
        job_log.tail(replace(source, root=allowed_paths.load_allowed_paths().pod_logs, path="kalos/x"))


def test_copied_logs_are_deleted_after_their_days(cluster, kalos, copy, settings):
    attempt = printing(cluster)
    kalos.print(attempt, "one")
    copy()
    settings.ACME_POD_LOG_DAYS = 30

    assert delete_old_logs_once(clock.now() + timedelta(days=29)) == 0
    assert delete_old_logs_once(clock.now() + timedelta(days=31)) == 2
    assert (
        copied_log.read_position(attempt.log_source.root, attempt.log_path, allowed_paths.load_allowed_paths())
        == copied_log.CopyPosition()
    )
