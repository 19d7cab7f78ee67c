"""A job that hangs is asked where its ranks stand, before anything is decided about it."""

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
from jobs.models import Attempt, Deed, Event, clock
from scheduling.backends.base import RequestRejected
from scheduling.loops.commands.send import send_commands_once
from scheduling.loops.recovery import decide_and_recover_once
from tests import make as rows
from tests.failures.detection.test_watch import MINUTE, reports, training
from tests.scheduling.fake import FakeCluster

# --- the stacks themselves


def dump(rank, *frames, mark=True, helper=True):
    """As faulthandler writes it; frames are (file, line, function), the innermost first."""
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


def told(text, world=0):
    return stacks.summarize_stacks(stacks.rank_positions(stacks.parse_stacks(text)), world)


def test_the_rank_that_the_others_wait_for_is_named_with_what_it_does():
    text = "".join(dump(rank, *(READS if rank == 2 else REDUCES)) for rank in range(4))

    said = told(text, 4)

    assert said.awaited_ranks == (2,)
    assert said.sentences == (
        "Ranks 0-1,3 wait in all_reduce, reduce (ada/grads.py:52).",
        "Rank 2 is in its data loader, next_batch (ada/data.py:63).",
        "The others wait for rank 2.",
    )


def test_where_all_have_come_it_lies_between_them():
    said = told("".join(dump(rank, *REDUCES) for rank in range(8)), 8)

    assert said.sentences[0] == "All 8 ranks wait in all_reduce, reduce (ada/grads.py:52)."
    assert "a link or the network" in said.sentences[1] and not said.awaited_ranks


def test_ranks_in_different_collectives_were_led_apart():
    gathers = ((C10D, 3000, "all_gather_into_tensor"), MAIN)

    said = told(dump(0, *REDUCES) + dump(1, *gathers), 2)

    assert "led them apart" in said.sentences[-1] and not said.awaited_ranks


def test_whoever_gives_no_stack_is_said_where_most_have():
    found = stacks.rank_positions(stacks.parse_stacks("".join(dump(rank, *REDUCES) for rank in (0, 1, 3))))

    assert stacks.summarize_stacks(found, stacks.expected_world_size(found, 4)).silent == (2,)
    assert stacks.expected_world_size(found, 64) == 0  # three of 64: a rank is no GPU there


def test_a_rank_that_was_asked_twice_counts_with_its_last_answer_and_lines_of_ranks_may_mix():
    one, two = dump(0, *REDUCES).splitlines(), dump(1, *READS).splitlines()
    mixed = "\n".join(line for pair in zip(one, two, strict=True) for line in pair)

    found = stacks.rank_positions(stacks.parse_stacks(dump(0, *READS) + mixed))

    assert {rank: place.doing for rank, place in found.items()} == {0: RankActivity.COLLECTIVE, 1: RankActivity.LOADER}


def test_py_spy_is_read_and_a_line_may_name_the_rank():
    spied = (
        "stacks of rank 5 (pid 77)\nProcess 77: python train.py\nPython v3.11.4\n\n"
        'Thread 77 (idle): "MainThread"\n    barrier (torch/distributed/distributed_c10d.py:4159)\n'
        "    main (train.py:40)\n    <module> (train.py:80)\n"
    )

    [(rank, place)] = stacks.rank_positions(stacks.parse_stacks(spied)).items()

    assert (rank, place.words(many=False)) == (5, "waits in barrier, main (train.py:40)")


def test_one_without_a_rank_says_what_it_can_and_noise_says_nothing():
    assert told(dump(0, *REDUCES, mark=False)).sentences == ("A rank waits in all_reduce, reduce (ada/grads.py:52).",)
    assert (
        stacks.parse_stacks('step 10 | loss 2.1\nTraceback (most recent call last):\n  File "a.py", line 1, in f\n')
        == []
    )


# --- asked, read, and only then decided


def answers(attempt, signal="USR2"):
    Attempt.objects.filter(pk=attempt.pk).update(stacks_signal=signal, backend_id="77", log_path=f"{attempt.key}.log")
    attempt.refresh_from_db()


def hanging(root, signal="USR2", **asked):
    """Found at `now`, and asked where its program can be."""
    now = clock.now()
    attempt = training(root, **asked)
    answers(attempt, signal)
    (root / attempt.log_path).write_text("step 60 | loss 2.0\n" + dump(9, *READS))  # of another time
    reports(attempt, now - 2 * MINUTE)
    watch_once(now)
    return attempt, now


def says(root, attempt, text):
    with (root / attempt.log_path).open("a") as log:
        log.write(text)


pytestmark = pytest.mark.django_db


def test_nothing_is_decided_before_the_stacks_have_come_and_then_they_are_evidence(tmp_path):
    recovery_actions.set_recovery_mode("act", author=rows.LOOP)
    attempt, now = hanging(tmp_path)
    slurm = FakeCluster()
    assert stacks_once(now) + decide_and_recover_once(now) == 0 and not Decision.objects.exists()

    send_commands_once(attempt.job.cluster, slurm, clock.now())
    assert slurm.signalled == [("77", "USR2")]
    says(tmp_path, attempt, dump(0, *REDUCES) + dump(1, *REDUCES) + dump(2, *READS))
    assert [stacks_once(now), stacks_once(now)] == [0, 1]  # seen to grow, then read

    row = StackDump.objects.get()
    assert (row.ranks, row.sentences[-1]) == (3, "The others wait for rank 2.")
    assert row.text.startswith("[rank0]: Thread") and "rank9" not in row.text
    assert Diagnosis.objects.get().notes[-1] == "The others wait for rank 2."
    assert Event.objects.filter(what="stacks.read", attempt=attempt).count() == 1
    decide_and_recover_once(now)
    attempt.refresh_from_db()
    assert attempt.stop_as == State.FAILED


def test_ranks_that_do_not_answer_are_not_waited_for_longer_than_the_grace(tmp_path):
    recovery_actions.set_recovery_mode("act", author=rows.LOOP)
    _, now = hanging(tmp_path)
    late = now + stack_actions.STACKS_TIMEOUT

    decide_and_recover_once(late)  # also where nobody reads stacks at all

    assert Decision.objects.exists()
    assert stacks_once(late) == 1
    assert (
        "None has come" in StackDump.objects.get().sentences[0] or "not reached" in StackDump.objects.get().sentences[0]
    )


def test_a_program_that_has_not_said_it_can_be_asked_is_never_sent_a_signal(tmp_path):
    _, now = hanging(tmp_path, signal="")

    assert not StackDump.objects.exists() and not Deed.objects.filter(kind="stacks").exists()
    assert decide_and_recover_once(now) == 1


def test_a_label_says_it_for_programs_that_report_nothing_of_the_kind(tmp_path):
    hanging(tmp_path, signal="", labels={"acme-stacks": "B:USR1"})

    assert Deed.objects.get(kind="stacks").reason == "B:USR1"


@pytest.mark.parametrize("word", ["hello", "", "9 9", "KILL", "B:TERM"])
def test_a_label_that_is_no_signal_for_that_asks_for_nothing(tmp_path, word):
    hanging(tmp_path, signal="", labels={"acme-stacks": word})

    assert not Deed.objects.filter(kind="stacks").exists()


@pytest.mark.parametrize("what", ["ended", "being stopped", "late"])
def test_a_signal_that_comes_too_late_is_not_sent(tmp_path, what):
    attempt, now = hanging(tmp_path)
    slurm = FakeCluster()
    if what == "ended":
        job_actions.finish(attempt, AttemptEnd(state=State.COMPLETED, at=now, exit_code=0), author=rows.LOOP)
    elif what == "being stopped":
        job_actions.cancel(attempt.job, author=rows.author())

    send_commands_once(attempt.job.cluster, slurm, clock.now() + (2 * MINUTE if what == "late" else timedelta(0)))

    assert slurm.signalled == [] and Deed.objects.get(kind="stacks").done_at


def test_a_cluster_that_refuses_leaves_the_reason(tmp_path):
    attempt, now = hanging(tmp_path)
    slurm = FakeCluster()

    def refuses(verb):
        if verb == "signal":
            raise RequestRejected("v0.0.38 would end the batch shell too")

    slurm.before = refuses
    send_commands_once(attempt.job.cluster, slurm, clock.now())
    stacks_once(now + stack_actions.STACKS_TIMEOUT)

    assert "would end the batch shell too" in StackDump.objects.get().sentences[0]


def test_asked_twice_it_is_asked_once_and_one_that_ends_meanwhile_keeps_what_came(tmp_path):
    attempt, now = hanging(tmp_path)
    assert watch_once(now + MINUTE) == 0 and Deed.objects.filter(kind="stacks").count() == 1
    says(tmp_path, attempt, dump(0, *REDUCES))
    job_actions.finish(attempt, AttemptEnd(state=State.FAILED, at=now, exit_code=1), author=rows.LOOP)

    assert [stacks_once(now), stacks_once(now)] == [1, 0]
    assert StackDump.objects.get().ranks == 1


def test_one_log_that_cannot_be_read_leaves_the_others_alone(tmp_path):
    first, now = hanging(tmp_path)
    second, _ = hanging(tmp_path, on=("seren-003", "seren-004"))
    (tmp_path / first.log_path).unlink()
    (tmp_path / first.log_path).mkdir()
    says(tmp_path, second, dump(0, *REDUCES))

    stacks_once(now)
    stacks_once(now)

    assert [row.attempt for row in StackDump.objects.filter(ranks=1)] == [second]


def test_a_program_reads_them_by_the_attempt_and_strangers_find_none(tmp_path):
    attempt, now = hanging(tmp_path)
    says(tmp_path, attempt, dump(0, *REDUCES))
    stacks_once(now)
    stacks_once(now)
    where = f"/api/v1/attempts/{attempt.key}/stacks/"
    mine, stranger = Client(), Client()
    mine.force_login(attempt.job.user)
    stranger.force_login(rows.user("mallory"))

    [shown] = mine.get(where).json()["results"]

    assert "distributed_c10d.py" in shown["text"] and shown["ranks"] == 1
    assert "Rank 0 waits in all_reduce" in shown["sentences"][0]
    assert stranger.get(where).status_code == 404


def test_the_page_shows_what_they_say_and_the_stacks_to_their_team_alone(tmp_path):
    attempt, now = hanging(tmp_path)
    says(tmp_path, attempt, dump(0, *REDUCES))
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
