"""Which wait decisions a turn writes: all in a short queue, a bounded number in a long one, and each of them
eventually.
"""

from collections import Counter
from datetime import timedelta

from jobs.core.lifecycle import JobKind
from scheduling.engine.blockers import Blocker, BlockerKind
from scheduling.engine.cluster import ClusterSnapshot, ResourceRequest, WaitDecision, WaitingJob
from scheduling.loops.schedule import changed_wait_reasons
from tests.make import NOON


def picture(count, now=NOON, **told):
    told = {"reason": "Resources", "why": "2 GPUs free.", **told}
    plain = {
        "team": "vision",
        "kind": JobKind.OTHER,
        "need": ResourceRequest(gpus=1),
        "priority": 0,
        "submitted_at": NOON,
    }
    return ClusterSnapshot(
        now=now, waiting=tuple(WaitingJob(id=n, name=f"j{n}", **plain, **told) for n in range(count))
    )


def waits(count, reason="Resources", why="3 GPUs free."):
    return [WaitDecision(job_id=n, reason=reason, why=why) for n in range(count)]


def ids(answers):
    return [one.job_id for one in answers]


def test_unchanged_decision_is_not_written():
    assert changed_wait_reasons(picture(5), waits(5, why="2 GPUs free.")) == []


def test_short_queue_is_written_at_once():
    assert ids(changed_wait_reasons(picture(10), waits(10), most=10)) == list(range(10))


def test_long_queue_writes_new_reasons_first_in_queue_order():
    answers = changed_wait_reasons(picture(100), waits(100, reason="Priority"), most=10)

    assert ids(answers) == list(range(10))


def test_new_reason_does_not_wait_behind_new_numbers():
    decisions = waits(100)
    decisions[70] = WaitDecision(job_id=70, reason="QOSGrpGRES", why="Its team's quota is used up.")

    assert changed_wait_reasons(picture(100), decisions, most=10)[0] == decisions[70]


def test_other_budgets_with_the_same_sentence_are_written():
    racks = Blocker(kind=BlockerKind.CAPACITY, reason="Power", why="Too little.", power_budgets=("rack a", "rack b"))
    decisions = [WaitDecision(0, "Power", "Too little.", (racks,))]
    same, other = (
        picture(1, reason="Power", why="Too little.", power_budgets=names) for names in (("rack a", "rack b"), ())
    )

    assert (changed_wait_reasons(same, decisions), changed_wait_reasons(other, decisions)) == ([], decisions)


def test_new_numbers_reach_every_job_within_one_rotation():
    times_written = Counter()
    for second in range(10):
        answers = changed_wait_reasons(picture(100, NOON + timedelta(seconds=second)), waits(100), most=10)
        assert len(answers) <= 10
        times_written.update(ids(answers))

    assert times_written == Counter(range(100))


def test_many_new_reasons_leave_a_share_for_new_numbers():
    decisions = [*waits(50, reason="Priority"), *waits(100)[50:]]
    seconds = [changed_wait_reasons(picture(100, NOON + timedelta(seconds=n)), decisions, most=10) for n in range(5)]

    assert all(len(answers) == 20 for answers in seconds)
    assert {job for answers in seconds for job in ids(answers)[10:]} == set(range(50, 100))
