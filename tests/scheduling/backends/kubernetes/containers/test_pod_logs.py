"""The log of a job from the logs of its pods: every line once and in order, whatever kubelets do."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import pytest

from jobs.core.lifecycle import State
from scheduling.backends.kubernetes.api_client import ApiClient
from scheduling.backends.kubernetes.connection.access import KubernetesAddress
from scheduling.backends.kubernetes.containers.log_messages import state_in_log
from scheduling.backends.kubernetes.containers.pod_logs import (
    GIVE_UP_AFTER,
    LoggedJob,
    LoggedPod,
    PodLogReader,
    ReadLimits,
)
from scheduling.backends.kubernetes.ends import PodEnd
from tests.scheduling.backends.kubernetes.containers.kubelet_logs import NOON, LogApi, at, event
from tests.scheduling.backends.kubernetes.scripted_api import serving, status

KUBECONFIG = """
current-context: c
contexts: [{{name: c, context: {{cluster: c}}}}]
clusters: [{{name: c, cluster: {{server: "{server}"}}}}]
"""


class Follower:
    """Reads the log of a job again and again, as the loop does."""

    def __init__(self, api: LogApi, server: str, **limits: float) -> None:
        self.api, self.clock, self.now = api, 0.0, NOON
        client = ApiClient(
            KubernetesAddress(kubeconfig="k"), lambda path: KUBECONFIG.format(server=server), timeout_s=20
        )
        self.client = client
        self.reader = PodLogReader(
            client, now=lambda: self.now, monotonic=lambda: self.clock, limits=ReadLimits(**limits)
        )
        self.positions: dict[str, str] = {}
        self.lines: list[str] = []
        self.complete = False

    def read(self, *pods: LoggedPod, state: State | None = None) -> list[str]:
        job = LoggedJob(uid="owner", namespace="jobs", pods=pods or (pod(),), state=state)
        update = self.reader.read(job, self.positions)
        self.positions, self.complete = dict(update.positions), update.is_complete
        self.lines += update.lines
        return list(update.lines)

    def close(self) -> None:
        self.api.release.set()
        self.reader.close()
        self.client.close()


@pytest.fixture
def limits():
    return {}


@pytest.fixture
def follower(limits):
    with serving(LogApi()) as (api, server), closing(Follower(api, server, **limits)) as follower:
        yield follower


def pod(rank=0, **fields):
    values = {
        "uid": f"u{rank}",
        "namespace": "jobs",
        "name": f"a-{rank}",
        "rank": rank,
        "node": f"n{rank}",
        "container": "job",
        "has_started": True,
    }
    return LoggedPod(**{**values, **fields})


def ended(state=State.COMPLETED, exit_code=0, at=NOON, **fields):
    return PodEnd(state=state, at=at, exit_code=exit_code, **fields)


def test_new_lines_are_returned_once(follower):
    follower.api.write("a-0", (1.25, "one"), (1.5, "two"))
    assert follower.read() == ["one", "two"]
    assert follower.read() == []

    follower.api.write("a-0", (1.75, "three"), (9, "four"))

    assert follower.read() == ["three", "four"]
    assert follower.read() == []


def test_request_names_the_container_and_begins_at_the_second_of_the_last_line(follower):
    follower.api.write("a-0", (61.75, "one"))
    follower.read()
    follower.read()

    (_, first), (_, second) = follower.api.queries

    assert first["container"] == "job" and "sinceTime" not in first
    assert second["sinceTime"] == "2026-11-21T12:01:01Z"


def test_lines_of_the_same_time_are_all_returned(follower):
    for number in range(5):
        follower.api.write("a-0", (3.5, "same"), (3.5, f"line {number}"))
        follower.read()

    assert follower.lines == [text for number in range(5) for text in ("same", f"line {number}")]


def test_times_that_go_backwards_lose_nothing(follower):
    follower.api.write("a-0", (5.9, "stdout"))
    follower.read()
    follower.api.write("a-0", (5.1, "stderr"), (5.95, "stdout again"))

    assert follower.read() == ["stderr", "stdout again"]


def test_rotation_between_two_seconds_repeats_nothing_and_says_that_lines_may_be_missing(follower):
    follower.api.write("a-0", (1, "old"), (2, "read"))
    follower.read()
    follower.api.rotate("a-0")
    assert follower.read() == []

    follower.api.write("a-0", (2.5, "new"), (8, "newer"))

    (gap, *lines) = follower.read()
    assert "lines before the next one may be missing" in gap and lines == ["new", "newer"]
    assert follower.read() == []


def test_rotation_that_keeps_the_last_line_is_no_gap(follower):
    follower.api.write("a-0", (2.1, "a"), (2.2, "b"))
    follower.read()
    follower.api.rotate("a-0")
    follower.api.write("a-0", (2.2, "b"), (2.3, "c"))

    assert follower.read() == ["c"]


def test_container_that_was_started_again_is_read_from_its_beginning(follower):
    follower.api.write("a-0", (1, "first run"), (2, "crash"))
    follower.read()
    follower.api.rotate("a-0")
    follower.api.write("a-0", (30, "second run"))

    assert follower.read()[1:] == ["second run"]


def test_unended_line_is_returned_when_it_is_complete(follower):
    follower.api.write("a-0", (1, "whole"))
    follower.api.unended["a-0"] = f"{at(2)} progress: 10"
    assert follower.read() == ["whole"]
    assert follower.read() == []

    follower.api.unended.clear()
    follower.api.write("a-0", (2, "progress: 100"))

    assert follower.read() == ["progress: 100"]


def test_last_line_without_an_end_belongs_to_the_log_of_an_ended_container(follower):
    follower.api.write("a-0", (1, "whole"))
    follower.api.unended["a-0"] = f"{at(2)} last words"

    lines = follower.read(pod(end=ended()), state=State.COMPLETED)

    assert lines[:2] == ["whole", "last words"] and follower.complete


def test_long_log_is_read_in_pieces(follower):
    words = [f"{number} {'x' * 1000}" for number in range(3000)]
    follower.api.write("a-0", *((number / 1000, text) for number, text in enumerate(words)))

    calls = 0
    while follower.read():
        calls += 1

    assert follower.lines == words and calls == 3


def test_more_lines_in_one_second_than_fit_in_a_response_are_all_read(follower):
    words = [f"{number} {'x' * 1000}" for number in range(3000)]
    follower.api.write("a-0", *((7.0, text) for text in words))

    while follower.read():
        pass

    assert follower.lines == words


def test_line_that_is_longer_than_a_response_is_read(follower):
    follower.api.write("a-0", (1, "y" * 3_000_000), (1, "after"))

    while follower.read():
        pass

    assert follower.lines == ["y" * 3_000_000, "after"]


@pytest.mark.parametrize("limits", [{"window_bytes": 1 << 20}])
def test_endless_line_is_passed_over(follower):
    follower.api.write("a-0", (1, "z" * 9_000_000), (1, "lost"), (2, "after"))

    lines = [line for _ in range(3) for line in follower.read()]

    assert "may be missing" in lines[0] and lines[1:] == ["after"]


def test_ranks_are_merged_by_time_and_numbered(follower):
    follower.api.write("a-0", (1, "zero"), (4, "zero again"))
    follower.api.write("a-1", (2, "one"), (3, "one again"))

    assert follower.read(pod(0), pod(1)) == ["0: zero", "1: one", "1: one again", "0: zero again"]


def test_lines_newer_than_those_of_a_rank_that_has_more_wait_for_it(follower):
    words = [f"{number} {'x' * 1000}" for number in range(12_000)]
    follower.api.write("a-0", *((number / 1000, text) for number, text in enumerate(words)))
    follower.api.write("a-1", (0.5, "early"), (11.9, "late"))
    follower.read(pod(0), pod(1))
    assert "1: early" in follower.lines and "1: late" not in follower.lines

    while follower.read(pod(0), pod(1)):
        pass

    assert follower.lines.index("1: late") > len(words) - 200
    assert sorted(follower.lines) == sorted([*(f"0: {text}" for text in words), "1: early", "1: late"])


def test_times_with_a_zone_are_understood(follower):
    follower.api.logs["a-0"] = ["2026-11-21T20:00:01.5+08:00 east", "2026-11-21T12:00:03Z plain"]
    follower.api.write("a-1", (2, "middle"))

    assert follower.read(pod(0), pod(1)) == ["0: east", "1: middle", "0: plain"]


def test_message_of_a_kubelet_is_no_line_of_the_log(follower):
    follower.api.logs["a-0"] = ["unable to retrieve container logs for containerd://1234"]

    assert follower.read() == []


def test_bytes_that_are_not_text_are_replaced(follower):
    follower.api.refusals["a-0"] = f"{at(1)} bad ".encode() + b"\xff\xfe\r\n"

    assert follower.read() == ["bad ��"]


@pytest.mark.parametrize("refusal", [status(500, "dial tcp 10.0.0.1:10250: connect: connection refused")])
def test_kubelet_that_does_not_answer_costs_its_pod_only(follower, refusal):
    follower.api.write("a-0", (1, "zero"))
    follower.api.write("a-1", (1, "one"))
    follower.api.refusals["a-1"] = refusal
    assert follower.read(pod(0), pod(1)) == ["0: zero"]

    del follower.api.refusals["a-1"]
    follower.clock += 60

    assert follower.read(pod(0), pod(1)) == ["1: one"]


def test_pod_that_does_not_answer_is_tried_less_and_less_often(follower):
    follower.api.refusals["a-0"] = status(500)
    for _ in range(100):
        follower.read()
        follower.clock += 1

    assert len(follower.api.queries) < 10


@pytest.mark.parametrize("limits", [{"timeout_s": 0.3}])
def test_silent_kubelet_costs_no_more_than_the_deadline(follower):
    follower.api.write("a-0", (1, "zero"))
    follower.api.silent.add("a-1")

    assert follower.read(pod(0), pod(1)) == ["0: zero"]


# --- the end


def test_complete_log_ends_with_the_state_of_the_job(follower):
    follower.api.write("a-0", (1, "done"))
    lines = follower.read(pod(end=ended()), state=State.COMPLETED)

    assert lines == ["done", "acme: pod a-0 on node n0 ended: succeeded", "acme: end of the log of 1 pod: COMPLETED"]
    assert follower.complete and state_in_log("\n".join(lines) + "\n") == State.COMPLETED
    assert follower.read(pod(end=ended()), state=State.COMPLETED)[:-1] == []


def test_log_is_not_complete_while_the_job_has_not_ended(follower):
    follower.api.write("a-0", (1, "done"))

    lines = follower.read(pod(end=ended()))

    assert lines[-1] == "acme: pod a-0 on node n0 ended: succeeded" and not follower.complete


def test_end_of_each_pod_says_why(follower):
    for rank in range(3):
        follower.api.write(f"a-{rank}", (1, "x"))
    killed = ended(State.OUT_OF_MEMORY, 137, reason="OOMKilled")
    ends = [killed, ended(State.FAILED, 1), ended(State.FAILED, 139, signal=11)]

    lines = follower.read(*(pod(rank, end=end) for rank, end in enumerate(ends)), state=State.OUT_OF_MEMORY)

    assert lines[3:] == [
        "acme: pod a-0 on node n0 ended: OOMKilled, exit code 137",
        "acme: pod a-1 on node n1 ended: exit code 1",
        "acme: pod a-2 on node n2 ended: exit code 139, signal 11",
        "acme: end of the log of 3 pods: OUT_OF_MEMORY",
    ]


def test_events_about_a_failed_pod_and_its_owner_are_written_in_order(follower):
    follower.api.write("a-0", (1, "x"))
    late = event("Evicted", "The node was low on resource: memory.", second=9)
    follower.api.events = {
        "u0": [late, event("FailedMount", 'MountVolume.SetUp failed for volume "data"', second=2)],
        "owner": [event("BackoffLimitExceeded", "Job has reached the specified backoff limit", name="a")],
    }

    lines = follower.read(pod(end=ended(State.NODE_FAIL, None, reason="Evicted")), state=State.NODE_FAIL)

    assert [line.split()[1] for line in lines if line.startswith("Warning")] == [
        "FailedMount",
        "Evicted",
        "BackoffLimitExceeded",
    ]
    assert "Warning  Evicted  pod/a-0  The node was low on resource: memory." in lines


def test_lines_that_follow_come_before_the_end(follower):
    words = [f"{number} {'x' * 1000}" for number in range(1500)]
    follower.api.write("a-0", *((number / 1000, text) for number, text in enumerate(words)))
    failed = pod(end=ended(State.FAILED, 1))

    while not follower.complete:
        follower.read(failed, state=State.FAILED)

    assert follower.lines[:-2] == words


def test_pod_that_never_started_has_an_end_only(follower):
    refused = ended(State.BOOT_FAIL, None, reason="UnexpectedAdmissionError: no healthy devices present")

    lines = follower.read(pod(has_started=False, end=refused), state=State.BOOT_FAIL)

    assert lines[0].startswith("acme: pod a-0 on node n0 ended: UnexpectedAdmissionError: no healthy")
    assert follower.complete and not follower.api.queries


def test_reason_why_a_pod_waits_is_written_once(follower):
    waits = ("ImagePullBackOff: Back-off pulling image", "ErrImagePull: not found", "ImagePullBackOff: Back-off again")

    lines = [line for why in waits for line in follower.read(pod(has_started=False, waits=why))]

    assert lines == [f"acme: pod a-0 waits: {why}" for why in waits[:2]]


def test_deleted_pod_is_complete_with_one_line_about_it(follower):
    follower.api.write("a-0", (1, "x"))
    follower.read()
    gone = pod(is_gone=True, end=ended(State.CANCELLED, None, reason="deleted"))

    lines = follower.read(gone, state=State.CANCELLED)

    assert lines == [
        "acme: pod a-0 on node n0 ended: deleted",
        "acme: the log of pod a-0 is not complete: the pod was deleted",
        "acme: end of the log of 1 pod: CANCELLED",
    ]


def test_pod_whose_deletion_was_not_seen_is_complete_with_one_line_about_it(follower):
    follower.api.write("a-0", (1, "x"))
    follower.api.write("a-1", (1, "x"))
    follower.read(pod(0), pod(1))

    lines = follower.read(pod(0, end=ended()), state=State.FAILED)

    assert "acme: the log of pod a-1 is not complete: the pod was deleted" in lines and follower.complete


def test_end_of_a_pod_is_written_although_its_log_cannot_be_read_yet(follower):
    follower.api.write("a-0", (1, "x"))
    follower.api.refusals["a-0"] = status(500)
    lost = pod(end=ended(State.NODE_FAIL, None, reason="NodeLost"))
    assert follower.read(lost, state=State.NODE_FAIL) == ["acme: pod a-0 on node n0 ended: NodeLost"]
    assert not follower.complete

    follower.api.refusals.clear()
    follower.clock += 60

    assert follower.read(lost, state=State.NODE_FAIL) == ["x", "acme: end of the log of 1 pod: NODE_FAIL"]
    assert follower.complete


def test_log_that_cannot_be_read_for_long_is_given_up_with_the_reason(follower):
    follower.api.refusals["a-0"] = status(500, "connection refused")
    failed = pod(end=ended(State.NODE_FAIL, None, reason="NodeLost"))
    follower.read(failed, state=State.NODE_FAIL)
    follower.now += GIVE_UP_AFTER + timedelta(seconds=1)
    follower.clock += 60

    lines = follower.read(failed, state=State.NODE_FAIL)

    assert "is not complete" in lines[0] and "connection refused" in lines[0] and follower.complete


@pytest.mark.parametrize("text", ["", "null", "[1]", "{", '["a","b",[-1,2,3,"x"],[],false,false]', "[" * 50_000])
def test_position_that_cannot_be_read_is_the_beginning(follower, text):
    follower.api.write("a-0", (1, "one"))
    follower.positions = {"u0": text}

    assert follower.read() == ["one"]


def test_positions_survive_the_process(follower):
    follower.api.write("a-0", (1, "one"))
    follower.read()
    follower.api.write("a-0", (1, "two"))
    other = Follower(follower.api, follower.client.server)
    other.positions = dict(follower.positions)

    with closing(other):
        assert other.read() == ["two"]


def test_events_that_cannot_be_read_are_mentioned(follower):
    follower.api.write("a-0", (1, "x"))
    follower.api.events["u0"] = "not a list"

    lines = follower.read(pod(end=replace(ended(State.FAILED, 1))), state=State.FAILED)

    assert lines[-2:] == ["acme: pod a-0 on node n0 ended: exit code 1", "acme: end of the log of 1 pod: FAILED"]


@pytest.mark.parametrize(
    ("tail", "state"),
    [
        ("x\nacme: end of the log of 4 pods: NODE_FAIL\n", State.NODE_FAIL),
        ("acme: end of the log of 1 pod: COMPLETED", State.COMPLETED),
        ("acme: end of the log of 1 pod: RUNNING\n", None),
        ("acme: end of the log of 1 pod: COMPLETED\nmore\n", None),
        ("0: acme: end of the log of 1 pod: COMPLETED\n", None),
        ("", None),
    ],
)
def test_state_is_that_of_the_last_line(tail, state):
    assert state_in_log(tail) == state
