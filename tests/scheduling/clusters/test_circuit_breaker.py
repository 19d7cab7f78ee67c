"""A cluster that does not respond in time is called less often, by one worker at a time, until it responds."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs.models import Cluster, Sample, clock
from scheduling.backends.base import ClusterUnreachable, OutcomeUnknown, RequestRejected
from scheduling.backends.telemetry import ExporterPage
from scheduling.clusters import circuit_breaker
from scheduling.clusters.circuit_breaker import (
    LATE_FAILURE_S,
    MAX_RETRY_DELAY,
    PROBE_CLAIM,
    PROBE_TIMEOUT_S,
    Admission,
    CircuitGuardedBackend,
)
from scheduling.loops.telemetry import read_telemetry_once
from scheduling.loops.turn import run_turn
from scheduling.models import ClusterEndpoint, OpenCircuit
from tests import make
from tests.scheduling.fake import FakeCluster, failing

CONTROL, TELEMETRY = ClusterEndpoint.CONTROL, ClusterEndpoint.TELEMETRY


class Watch:
    """A clock that stands still unless told otherwise."""

    def __init__(self):
        self.at = 0.0

    def __call__(self):
        return self.at


class Hanging(FakeCluster):
    """Each verb fails after as many seconds as its deadline has."""

    def __init__(self, watch, error=None, takes_s=10.0):
        super().__init__()
        self.asked = []

        def before(verb):
            self.asked.append(verb)
            watch.at += takes_s
            raise error or ClusterUnreachable("timed out")

        self.before = before


def open_circuit(cluster, times=1):
    for _ in range(times):
        circuit_breaker.record_timeout(cluster, CONTROL, "timed out", chance=lambda: 0.5)
    return OpenCircuit.objects.get()


def let_time_pass():
    OpenCircuit.objects.update(retry_at=clock.now() - timedelta(seconds=1))


def admission(cluster):
    return circuit_breaker.request_admission(cluster, CONTROL)


# --- the state


def test_cluster_that_responds_has_a_closed_circuit(cluster):
    assert [admission(cluster), admission(cluster)] == [Admission.FREE, Admission.FREE]


def test_cluster_that_does_not_respond_in_time_is_not_called(cluster):
    open_circuit(cluster)

    assert admission(cluster) == Admission.WAIT


def test_each_late_call_doubles_the_delay_up_to_a_minute(cluster):
    waits = []
    for _ in range(8):
        row = open_circuit(cluster)
        waits.append(round((row.retry_at - clock.now()).total_seconds()))

    assert waits == [2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize(("chance", "share"), [(0.0, 0.75), (0.999, 1.25)])
def test_retry_delays_have_random_jitter(cluster, chance, share):
    open_circuit(cluster, 7)

    circuit_breaker.record_timeout(cluster, CONTROL, "timed out", chance=lambda: chance)

    wait = OpenCircuit.objects.get().retry_at - clock.now()
    assert abs(wait / MAX_RETRY_DELAY - share) < 0.1


def test_only_one_worker_probes_when_the_delay_is_over(cluster):
    open_circuit(cluster)
    let_time_pass()

    assert [admission(cluster) for _ in range(3)] == [Admission.TRY, Admission.WAIT, Admission.WAIT]


def test_another_worker_probes_after_one_died_during_its_probe(cluster):
    open_circuit(cluster)
    let_time_pass()
    admission(cluster)

    assert OpenCircuit.objects.get().retry_at <= clock.now() + PROBE_CLAIM
    let_time_pass()
    assert admission(cluster) == Admission.TRY


def test_response_closes_the_circuit(cluster):
    open_circuit(cluster, 5)

    circuit_breaker.record_answer(cluster, CONTROL)

    assert admission(cluster) == Admission.FREE


def test_new_address_starts_with_a_closed_circuit(cluster):
    open_circuit(cluster, 5)
    Cluster.objects.update(address="http://127.0.0.1:2")
    cluster.refresh_from_db()

    assert admission(cluster) == Admission.FREE
    assert circuit_breaker.open_circuits(cluster) == []
    assert open_circuit(cluster).timeouts == 1


def test_hanging_telemetry_does_not_stop_turns(cluster):
    circuit_breaker.record_timeout(cluster, TELEMETRY, "timed out")

    assert admission(cluster) == Admission.FREE


# --- the calls of one turn


def test_turn_makes_no_more_calls_after_a_late_failure(db):
    watch = Watch()
    slurm = Hanging(watch)
    guarded = CircuitGuardedBackend(slurm, watch)

    for _ in range(3):
        with pytest.raises(ClusterUnreachable, match="timed out"):
            guarded.jobs()

    assert (slurm.asked, watch.at) == (["jobs"], 10.0)
    assert guarded.late == "timed out"


def test_submissions_in_doubt_after_a_late_failure_end_the_calls_too(db):
    watch = Watch()
    guarded = CircuitGuardedBackend(Hanging(watch, OutcomeUnknown("timed out after the request was sent")), watch)

    with pytest.raises(OutcomeUnknown):
        guarded.cancel("1")

    assert [str(answer) for answer in guarded.submit_all([object()])] == ["timed out after the request was sent"]
    assert isinstance(guarded.submit_all([object()])[0], ClusterUnreachable)


def test_immediate_failure_does_not_open_the_circuit(db):
    watch = Watch()
    guarded = CircuitGuardedBackend(Hanging(watch, takes_s=LATE_FAILURE_S / 2), watch)

    with pytest.raises(ClusterUnreachable):
        guarded.jobs()

    assert guarded.late == ""


# --- the turn


def turn(cluster, slurm, ping=None, watch=None):
    ping = ping or (lambda row, timeout_s: slurm.ping())
    return run_turn(cluster.pk, "me", lambda _: slurm, ping, watch or Watch())


class LatePing:
    """Fails when its deadline is over."""

    def __init__(self, watch):
        self.watch, self.asked = watch, []

    def __call__(self, row, timeout_s):
        self.asked.append(row)
        self.watch.at += timeout_s
        raise ClusterUnreachable("still silent")


def test_turn_does_not_call_a_cluster_with_an_open_circuit(cluster, slurm):
    job = make.job()
    open_circuit(cluster)

    assert turn(cluster, slurm) == 0
    job.refresh_from_db()
    assert slurm.sent == [] and job.state == "PENDING"


def test_probe_is_a_ping_with_a_short_timeout_followed_by_a_turn(cluster, slurm):
    make.job(gpus_per_node=8)
    open_circuit(cluster)
    let_time_pass()
    deadlines = []

    assert turn(cluster, slurm, lambda row, timeout_s: deadlines.append(timeout_s)) == 1

    assert deadlines == [PROBE_TIMEOUT_S]
    assert len(slurm.sent) == 1 and not OpenCircuit.objects.exists()


def test_late_probe_doubles_the_delay_and_shows_the_error(cluster, slurm):
    open_circuit(cluster)
    let_time_pass()
    watch = Watch()

    assert turn(cluster, slurm, LatePing(watch), watch) == 0

    assert OpenCircuit.objects.get().timeouts == 2
    assert Cluster.objects.get().last_error == "still silent"


def test_a_turn_probes_a_silent_cluster_once(cluster, slurm):
    open_circuit(cluster)
    let_time_pass()
    watch = Watch()
    ping = LatePing(watch)

    turn(cluster, slurm, ping, watch)

    assert len(ping.asked) == 1


@pytest.mark.parametrize(
    "error", [ClusterUnreachable("connection refused"), RequestRejected("authentication failure (401)")]
)
def test_probe_that_fails_at_once_closes_the_circuit_and_shows_the_error(cluster, slurm, error):
    open_circuit(cluster, 3)
    let_time_pass()
    slurm.before = failing(error, "ping", "jobs", "nodes")

    assert turn(cluster, slurm) == 1

    assert not OpenCircuit.objects.exists()
    assert Cluster.objects.get().last_error == str(error)


# --- telemetry


def test_hanging_exporter_is_not_read_and_probed_with_a_short_timeout(cluster):
    Cluster.objects.update(metrics_address="http://127.0.0.1:9/metrics")
    cluster.refresh_from_db()
    watch, deadlines = Watch(), []

    def read(address, timeout_s):
        deadlines.append(timeout_s)
        watch.at += timeout_s
        raise ClusterUnreachable("timed out")

    for _ in range(3):
        read_telemetry_once(cluster, read, watch)
    let_time_pass()
    read_telemetry_once(cluster, read, watch)

    assert deadlines == [5.0, PROBE_TIMEOUT_S]
    assert OpenCircuit.objects.get().timeouts == 2 and not Sample.objects.exists()


def test_exporter_that_responds_again_is_read_as_before(cluster):
    circuit_breaker.record_timeout(cluster, TELEMETRY, "timed out")
    let_time_pass()

    read_telemetry_once(cluster, lambda address, timeout_s: ExporterPage(gpus=()))

    assert not OpenCircuit.objects.exists()


# --- log storage


@pytest.mark.parametrize(("says", "rows"), [("It does not answer.", 1), ("", 0), (None, 0)])
def test_silent_log_storage_is_recorded_for_the_page(cluster, says, rows):
    Cluster.objects.update(log_root="/logs")

    circuit_breaker.record_log_storage_state(lambda root: says)

    assert OpenCircuit.objects.filter(endpoint=ClusterEndpoint.LOGS, address="/logs").count() == rows


def test_log_storage_circuit_closes_after_a_response_and_stays_without_one(cluster):
    Cluster.objects.update(log_root="/logs")
    circuit_breaker.record_log_storage_state(lambda root: "It does not answer.")

    circuit_breaker.record_log_storage_state(lambda root: None)
    assert OpenCircuit.objects.exists()

    circuit_breaker.record_log_storage_state(lambda root: "")
    assert not OpenCircuit.objects.exists()
