"""The words that the pages of scheduling choose, without a browser and without a database."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from scheduling.core.quotas import QuotaAccount, QuotaUse
from scheduling.core.run_badges import run_badge
from scheduling.engine.blockers import Blocker, BlockerKind, Holder
from scheduling.evaluation.pages.campaigns import result_text
from scheduling.evaluation.reads.campaigns import ResultCell
from scheduling.pages.clusters import contact_badge
from scheduling.pages.why_waiting import BlockerText, blocker_amount
from scheduling.queries.queue_order import QueueEntry, QueueView
from scheduling.queries.wait_explanation import WaitExplanation

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def blocker(kind, **fields):
    return Blocker(kind=kind, reason="Resources", why="It waits.", **fields)


@pytest.mark.parametrize(
    ("found", "amount"),
    [
        (blocker(BlockerKind.PRIORITY, gpus=16), "16 GPUs requested by jobs ahead"),
        (blocker(BlockerKind.QUOTA, gpus=1), "1 GPU over the quota"),
        (blocker(BlockerKind.CAPACITY, gpus=8), "8 GPUs missing"),
        (blocker(BlockerKind.CAPACITY, gpus=8, nodes=1), "8 GPUs missing on 1 node"),
        (
            blocker(BlockerKind.TOPOLOGY, nodes=2),
            "Enough GPUs are free, but scattered. The job needs room on 2 more nodes.",
        ),
        (blocker(BlockerKind.HOLD), ""),
    ],
)
def test_amount_of_a_blocker_names_what_is_missing(found, amount):
    assert blocker_amount(found) == amount


def test_holders_without_a_name_are_counted():
    hidden, team = Holder(gpus=24, jobs=3), Holder(gpus=8, jobs=1, team="vision")
    text = BlockerText.of(blocker(BlockerKind.CAPACITY, gpus=8, holders=(hidden, team)))

    assert text.holders_title == "Held by"
    assert [holder.others for holder in text.holders] == ["3 jobs of other teams", "1 more job of vision"]


def test_jobs_ahead_do_not_hold_resources():
    assert BlockerText.of(blocker(BlockerKind.RESERVATION)).holders_title == "Jobs ahead"


def test_held_job_has_no_start_estimate():
    held = WaitExplanation(at=NOON, blockers=(blocker(BlockerKind.HOLD),))

    assert held.no_estimate_text == "No estimate while the job is held."
    assert held.no_change_text.startswith("No single change")
    assert WaitExplanation(at=NOON).no_change_text == "No change is needed."
    assert WaitExplanation(at=NOON).no_estimate_text.startswith("No estimate yet.")


def cell(**fields):
    return ResultCell(**{"state": "COMPLETED", "value": None, "metric": "acc", "why": "", "reused": False} | fields)


def test_result_shows_its_score_and_the_change():
    shown = result_text(cell(value=0.5, change=0.25, reused=True))
    worse = result_text(cell(value=0.5, change=-0.25))

    assert (shown.score, shown.change, shown.note) == ("0.5000", "+0.2500", "acc · reused")
    assert (worse.change, worse.note) == ("-0.2500", "acc")


def test_result_without_a_score_shows_its_state():
    failed = result_text(cell(state="FAILED", why="no disk"))

    assert (failed.score, failed.note, failed.note_class, failed.why) == ("", "✗ failed", "tone bad", "no disk")
    assert result_text(None).note == result_text(cell(state="PENDING")).note == "… waiting"


def test_unknown_run_state_has_the_badge_of_a_stopped_run():
    assert (run_badge("FAILED").tone, run_badge("FAILED").icon) == ("bad", "✗")
    assert (run_badge("CANCELLED").tone, run_badge("CANCELLED").icon) == ("quiet", "■")


def test_silent_cluster_shows_its_last_contact():
    silent = SimpleNamespace(is_silent=lambda now: True, last_contact_at=NOON)
    new = SimpleNamespace(is_silent=lambda now: True, last_contact_at=None)
    fine = SimpleNamespace(is_silent=lambda now: False, last_contact_at=NOON)

    assert (contact_badge(silent, NOON).tone, contact_badge(silent, NOON).since) == ("bad", NOON)
    assert (contact_badge(new, NOON).since, contact_badge(new, NOON).label) == (None, "never")
    assert (contact_badge(fine, NOON).label, contact_badge(fine, NOON).since) == ("yes", None)


def test_quota_text_lists_only_what_applies():
    plain = QuotaAccount(team="vision", owned=8, use=QuotaUse(held_milli=4_000))
    busy = QuotaAccount(
        team="vision", owned=8, reserved=True, use=QuotaUse(held_milli=4_000, borrowed_milli=2_000, waiting_milli=3_000)
    )

    assert plain.use_text == " of 8 allocated"
    assert busy.use_text == " of 8 allocated, 4 reserved, 2 borrowed, 3 requested"
    assert QuotaAccount(team="vision").use_text == " allocated, no quota"


def test_group_of_hidden_jobs_shows_its_first_and_last_rank():
    assert QueueEntry(rank=4).ranks == "4"
    assert QueueEntry(rank=4, jobs=3).ranks == "4–6"


def test_ineligible_jobs_of_other_teams_are_counted():
    view = QueueView(
        at=NOON,
        places=(),
        waiting=0,
        gpus=0,
        more=0,
        apart=(),
        apart_in_all=2,
        warning="",
        figure_label="",
        figure_help="",
    )

    assert view.apart_text == "2 held, not yet due, or waiting for other jobs; none in your teams"
