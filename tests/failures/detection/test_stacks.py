"""Stacks of a hanging job: parsing, summary, the request before a decision, and who may see them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from failures.actions import stacks as stack_actions
from failures.detection import stacks
from failures.detection.stacks import RankActivity
from failures.loops.stacks import stacks_once
from failures.loops.watch import watch_once
from failures.models import Decision, Diagnosis, StackDump
from jobs.actions import jobs as job_actions
from jobs.actions import recovery as recovery_actions
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import State
from jobs.models import Attempt, ClusterCommand, Event, clock
from scheduling.backends.base import RequestRejected
from scheduling.loops.commands.send import send_commands_once
from tests import make as rows
from tests.failures.detection.test_watch import MINUTE, reports, training
from tests.failures.make import decide_and_recover_once
from tests.scheduling.fake import FakeCluster

# --- parsing and summary


def dump(rank, *frames, mark=True, helper=True):
    """A dump in the format of faulthandler; frames are (file, line, function), innermost first."""
    head = [
        "Thread 0x00007f01 (most recent call first):",
        '  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap',
        "",
    ]
    lines = [*(head if helper else []), "Current thread 0x00007f02 (most recent call first):"]
    lines += [f'  File "{file}", line {line} in {name}' for file, line, name in frames]
    return "".join(f"[rank{rank}]: {line}\n" if mark else f"{line}\n" for line in lines)


C10D = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
LOADER = "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
MAIN = ("/home/ada/train.py", 97, "<module>")
REDUCES = ((C10D, 2806, "all_reduce"), ("/home/ada/grads.py", 52, "reduce"), MAIN)
READS = ((LOADER, 701, "__next__"), ("/home/ada/data.py", 63, "next_batch"), MAIN)


def summary_of(text, world=0):
    return stacks.summarize_stacks(stacks.rank_positions(stacks.parse_stacks(text)), world)


def test_awaited_rank_is_named_with_its_activity():
    text = "".join(dump(rank, *(READS if rank == 2 else REDUCES)) for rank in range(4))

    summary = summary_of(text, 4)

    assert summary.awaited_ranks == (2,)
    assert summary.sentences == (
        "Ranks 0-1,3 wait in all_reduce, reduce (ada/grads.py:52).",
        "Rank 2 is in its data loader, next_batch (ada/data.py:63).",
        "The others wait for rank 2.",
    )


def test_all_ranks_in_one_collective_point_to_hardware_or_network():
    summary = summary_of("".join(dump(rank, *REDUCES) for rank in range(8)), 8)

    assert summary.sentences[0] == "All 8 ranks wait in all_reduce, reduce (ada/grads.py:52)."
    assert "a link or the network" in summary.sentences[1] and not summary.awaited_ranks


def test_ranks_in_different_collectives_point_to_the_program():
    gathers = ((C10D, 3000, "all_gather_into_tensor"), MAIN)

    summary = summary_of(dump(0, *REDUCES) + dump(1, *gathers), 2)

    assert "in a different order" in summary.sentences[-1] and not summary.awaited_ranks


def test_missing_ranks_are_named_only_if_most_ranks_have_a_stack():
    found = stacks.rank_positions(stacks.parse_stacks("".join(dump(rank, *REDUCES) for rank in (0, 1, 3))))

    assert stacks.summarize_stacks(found, stacks.expected_world_size(found, 4)).silent == (2,)
    assert stacks.expected_world_size(found, 64) == 0  # three of 64: there is not one rank per GPU


def test_last_dump_of_a_rank_counts_even_if_lines_of_ranks_are_mixed():
    one, two = dump(0, *REDUCES).splitlines(), dump(1, *READS).splitlines()
    mixed = "\n".join(line for pair in zip(one, two, strict=True) for line in pair)

    found = stacks.rank_positions(stacks.parse_stacks(dump(0, *READS) + mixed))

    assert {rank: place.doing for rank, place in found.items()} == {0: RankActivity.COLLECTIVE, 1: RankActivity.LOADER}


def test_py_spy_output_is_read_with_the_rank_from_a_marker_line():
    spied = (
        "stacks of rank 5 (pid 77)\nProcess 77: python train.py\nPython v3.11.4\n\n"
        'Thread 77 (idle): "MainThread"\n    barrier (torch/distributed/distributed_c10d.py:4159)\n'
        "    main (train.py:40)\n    <module> (train.py:80)\n"
    )

    [(rank, place)] = stacks.rank_positions(stacks.parse_stacks(spied)).items()

    assert (rank, place.words(many=False)) == (5, "waits in barrier, main (train.py:40)")


def test_stack_without_a_rank_is_summarized_and_other_lines_are_ignored():
    assert summary_of(dump(0, *REDUCES, mark=False)).sentences == (
        "One rank waits in all_reduce, reduce (ada/grads.py:52).",
    )
    assert (
        stacks.parse_stacks('step 10 | loss 2.1\nTraceback (most recent call last):\n  File "a.py", line 1, in f\n')
        == []
    )


# --- request, reading and decision


def declare_signal(attempt, signal="USR2"):
    Attempt.objects.filter(pk=attempt.pk).update(stacks_signal=signal, backend_id="77", log_path=f"{attempt.key}.log")
    attempt.refresh_from_db()


def hanging(root, signal="USR2", **asked):
    """A job that was found hanging at `now`, with a request for its stacks if it declares a signal."""
    now = clock.now()
    attempt = training(root, **asked)
    declare_signal(attempt, signal)
    (root / attempt.log_path).write_text("step 60 | loss 2.0\n" + dump(9, *READS))  # from an earlier time
    reports(attempt, now - 2 * MINUTE)
    watch_once(now)
    return attempt, now


def append_to_log(root, attempt, text):
    with (root / attempt.log_path).open("a") as log:
        log.write(text)


pytestmark = pytest.mark.django_db


def test_decision_waits_for_the_stacks_and_uses_them_as_evidence(tmp_path):
    recovery_actions.set_recovery_mode("act", author=rows.LOOP)
    attempt, now = hanging(tmp_path)
    slurm = FakeCluster()
    assert stacks_once(now) + decide_and_recover_once(now) == 0 and not Decision.objects.exists()

    send_commands_once(attempt.job.cluster, slurm, clock.now())
    assert slurm.signaled == [("77", "USR2")]
    append_to_log(tmp_path, attempt, dump(0, *REDUCES) + dump(1, *REDUCES) + dump(2, *READS))
    assert [stacks_once(now), stacks_once(now)] == [0, 1]  # the first look sees the log grow, the second one reads it

    row = StackDump.objects.get()
    assert (row.ranks, row.summary[-1]) == (3, "The others wait for rank 2.")
    assert row.text.startswith("[rank0]: Thread") and "rank9" not in row.text
    assert Diagnosis.objects.get().notes[-1] == "The others wait for rank 2."
    assert Event.objects.filter(type="stacks.read", attempt=attempt).count() == 1
    decide_and_recover_once(now)
    attempt.refresh_from_db()
    assert attempt.stop_state == State.FAILED


def test_decision_does_not_wait_for_stacks_beyond_the_timeout(tmp_path):
    recovery_actions.set_recovery_mode("act", author=rows.LOOP)
    _, now = hanging(tmp_path)
    late = now + stack_actions.STACKS_TIMEOUT

    decide_and_recover_once(late)  # also if the stacks loop does not run

    assert Decision.objects.exists()
    assert stacks_once(late) == 1
    assert "None arrived" in StackDump.objects.get().summary[0] or "not reached" in StackDump.objects.get().summary[0]


def test_program_without_a_stacks_signal_is_never_signaled(tmp_path):
    _, now = hanging(tmp_path, signal="")

    assert not StackDump.objects.exists() and not ClusterCommand.objects.filter(kind="stacks").exists()
    assert decide_and_recover_once(now) == 1


def test_job_label_declares_the_stacks_signal(tmp_path):
    hanging(tmp_path, signal="", labels={"acme-stacks": "B:USR1"})

    assert ClusterCommand.objects.get(kind="stacks").reason == "B:USR1"


@pytest.mark.parametrize("word", ["hello", "", "9 9", "KILL", "B:TERM"])
def test_label_with_an_unsuitable_signal_requests_no_stacks(tmp_path, word):
    hanging(tmp_path, signal="", labels={"acme-stacks": word})

    assert not ClusterCommand.objects.filter(kind="stacks").exists()


@pytest.mark.parametrize("what", ["ended", "being stopped", "late"])
def test_late_stacks_signal_is_not_sent(tmp_path, what):
    attempt, now = hanging(tmp_path)
    slurm = FakeCluster()
    if what == "ended":
        job_actions.finish(attempt, AttemptEnd(state=State.COMPLETED, at=now, exit_code=0), author=rows.LOOP)
    elif what == "being stopped":
        job_actions.cancel(attempt.job, author=rows.author())

    send_commands_once(attempt.job.cluster, slurm, clock.now() + (2 * MINUTE if what == "late" else timedelta(0)))

    assert slurm.signaled == [] and ClusterCommand.objects.get(kind="stacks").done_at


def test_rejected_stacks_request_stores_the_reason(tmp_path):
    attempt, now = hanging(tmp_path)
    slurm = FakeCluster()

    def refuses(verb):
        if verb == "signal":
            raise RequestRejected("v0.0.38 would end the batch shell too")

    slurm.before = refuses
    send_commands_once(attempt.job.cluster, slurm, clock.now())
    stacks_once(now + stack_actions.STACKS_TIMEOUT)

    assert "would end the batch shell too" in StackDump.objects.get().summary[0]


def test_stacks_are_requested_once_and_read_even_if_the_attempt_ends(tmp_path):
    attempt, now = hanging(tmp_path)
    assert watch_once(now + MINUTE) == 0 and ClusterCommand.objects.filter(kind="stacks").count() == 1
    append_to_log(tmp_path, attempt, dump(0, *REDUCES))
    job_actions.finish(attempt, AttemptEnd(state=State.FAILED, at=now, exit_code=1), author=rows.LOOP)

    assert [stacks_once(now), stacks_once(now)] == [1, 0]
    assert StackDump.objects.get().ranks == 1


def test_unreadable_log_does_not_affect_the_stacks_of_others(tmp_path):
    first, now = hanging(tmp_path)
    second, _ = hanging(tmp_path, on=("seren-003", "seren-004"))
    (tmp_path / first.log_path).unlink()
    (tmp_path / first.log_path).mkdir()
    append_to_log(tmp_path, second, dump(0, *REDUCES))

    stacks_once(now)
    stacks_once(now)

    assert [row.attempt for row in StackDump.objects.filter(ranks=1)] == [second]


def test_api_returns_stacks_to_the_owner_and_404_to_others(tmp_path):
    attempt, now = hanging(tmp_path)
    append_to_log(tmp_path, attempt, dump(0, *REDUCES))
    stacks_once(now)
    stacks_once(now)
    where = f"/api/v1/attempts/{attempt.key}/stacks/"
    mine, stranger = Client(), Client()
    mine.force_login(attempt.job.user)
    stranger.force_login(rows.user("mallory"))

    [shown] = mine.get(where).json()["results"]

    assert "distributed_c10d.py" in shown["text"] and shown["ranks"] == 1
    assert "Rank 0 waits in all_reduce" in shown["summary"][0]
    assert stranger.get(where).status_code == 404


def test_incident_page_shows_the_stacks_to_their_team_only(tmp_path):
    attempt, now = hanging(tmp_path)
    append_to_log(tmp_path, attempt, dump(0, *REDUCES))
    stacks_once(now)
    stacks_once(now)
    incident = StackDump.objects.get().incident
    rows.team("platform", op="admin")
    mine, operator = Client(), Client()
    mine.force_login(attempt.job.user)
    operator.force_login(rows.user("root", is_superuser=False))

    page = mine.get(f"/failures/{incident.pk}/").content.decode()

    assert "Rank 0 waits in all_reduce" in page and "distributed_c10d.py" in page
    assert "distributed_c10d" not in operator.get(f"/failures/{incident.pk}/").content.decode()
