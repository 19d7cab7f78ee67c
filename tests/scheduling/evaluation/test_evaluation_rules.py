"""Evaluation rules: due checkpoints (pure), and the loop that starts campaigns."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pytest

from acmeweb.common.errors import InvalidField, StateConflict, TimeLimitExceeded
from jobs.models import Checkpoint, CheckpointVerdict, Cluster, Event, Membership, clock
from scheduling.evaluation.actions import evaluation_rules as rule_actions
from scheduling.evaluation.loops import evaluation_rules as loop
from scheduling.evaluation.loops.evaluation_rules import TurnLimits, check_rules_once
from scheduling.evaluation.rules import evaluation_rules as rules
from scheduling.evaluation.rules.evaluation_rules import DueCheckpoints, FoundCheckpoint, RuleHistory, due_checkpoints
from scheduling.models import Campaign, EvaluationRule
from tests import make
from tests.scheduling.evaluation.campaign_make import suite
from tests.statements import failing_statement

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def rule(**wishes):
    return rules.parse_rule({"directory": "/ckpt/run", "suite": "core"} | wishes)


def saved(step: int, root: str = "/ckpt/run") -> FoundCheckpoint:
    return FoundCheckpoint(path=f"{root}/step-{step}", step=step, at=NOON + timedelta(seconds=step))


NOTHING_YET = RuleHistory(seen=())


# --- what is due


def test_nothing_is_due_without_new_checkpoints():
    assert due_checkpoints(rule(), [], NOTHING_YET, NOON) == DueCheckpoints()
    assert due_checkpoints(rule(), [saved(1)], RuleHistory(seen=["/ckpt/run/step-1"]), NOON) == DueCheckpoints()


def test_newest_checkpoint_is_evaluated_and_older_ones_are_skipped():
    found = due_checkpoints(rule(), [saved(2), saved(3), saved(1)], NOTHING_YET, NOON)

    assert found.start == ("/ckpt/run/step-3",)
    assert found.skip == ("/ckpt/run/step-1", "/ckpt/run/step-2")


def test_selection_every_evaluates_all_checkpoints_in_order():
    found = due_checkpoints(rule(which="every"), [saved(2), saved(3), saved(1)], NOTHING_YET, NOON)

    assert found == DueCheckpoints(start=("/ckpt/run/step-1", "/ckpt/run/step-2", "/ckpt/run/step-3"))


def test_checkpoints_over_the_campaign_limit_wait_for_the_next():
    found = due_checkpoints(rule(which="every"), [saved(n) for n in range(80)], NOTHING_YET, NOON)

    assert len(found.start) == rules.MAX_CHECKPOINTS_PER_CAMPAIGN
    assert found.skip == ()


def test_only_names_matching_the_pattern_count():
    there = [saved(1), saved(2, "/ckpt/running"), saved(3, "/ckpt/run/ema")]

    found = due_checkpoints(rule(which="every", pattern="ema/*"), there, NOTHING_YET, NOON)

    assert found.start == ("/ckpt/run/ema/step-3",)
    assert due_checkpoints(rule(which="every"), there, NOTHING_YET, NOON).start == (
        "/ckpt/run/step-1",
        "/ckpt/run/ema/step-3",
    )


def test_minimum_interval_delays_a_campaign_with_a_reason():
    asked = RuleHistory(seen=(), last_at=NOON - timedelta(minutes=10))

    held = due_checkpoints(rule(interval="1:00:00"), [saved(1)], asked, NOON)
    later = due_checkpoints(rule(interval="1:00:00"), [saved(1)], asked, NOON + timedelta(minutes=50))

    assert held == DueCheckpoints(why="1 new checkpoint waits until 12:50 UTC: the minimum interval is 1:00:00.")
    assert later.start == ("/ckpt/run/step-1",)


def test_daily_limit_delays_a_campaign():
    held = due_checkpoints(rule(per_day=2), [saved(1), saved(2)], RuleHistory(seen=(), today=2), NOON)

    assert held == DueCheckpoints(why="2 new checkpoints wait: the limit of 2 campaigns in 24 hours is reached.")


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"directory": "relative"}, "directory: 'relative' is not an absolute path without .."),
        ({"directory": "/"}, "directory: is the root of the file system"),
        ({"directory": "/a/../b"}, "directory: '/a/../b' is not an absolute path without .."),
        ({"directory": None}, "directory: is missing"),
        ({"suite": " "}, "suite: is empty"),
        ({"which": "all"}, "which: 'all' is not one of newest, every"),
        ({"interval": "60-00:00:00"}, "interval: must be a duration of at most 30 days"),
        ({"per_day": 0}, "per_day: 0 is not between 1 and 1000"),
        ({"color": 1}, "color: is not a field of an evaluation rule"),
    ],
)
def test_invalid_rule_is_refused_with_its_field(wish, sentence):
    with pytest.raises(InvalidField) as refused:
        rule(**wish)

    assert str(refused.value) == sentence


def test_directory_of_a_rule_cannot_change():
    with pytest.raises(InvalidField, match="add another rule"):
        rules.parse_rule_changes({"directory": "/other"})


# --- the loop


@pytest.fixture
def shelf(tmp_path):
    """Where a cluster keeps checkpoints, with a team and its suite."""
    home = make.cluster(log_root=str(tmp_path), checkpoint_root=str(tmp_path))
    suite(team=make.team(ada="researcher"))
    (tmp_path / "run").mkdir()
    return home


def lay(cluster, step: int, *, whole: bool = True, at=None) -> str:
    """A checkpoint as torch DCP writes it, the metadata last."""
    place = f"{cluster.checkpoint_root}/run/step-{step}"
    os.makedirs(place)
    for name in ("__0_0.distcp", *([".metadata"] if whole else [])):
        with open(f"{place}/{name}", "w") as file:
            file.write("bytes")
        stamp = (at or clock.now() + timedelta(seconds=step)).timestamp()
        os.utime(f"{place}/{name}", (stamp, stamp))
    return place


def made(cluster, **wishes) -> EvaluationRule:
    spec = rules.parse_rule({"directory": f"{cluster.checkpoint_root}/run", "suite": "core"} | wishes)
    row = rule_actions.create_rule(spec, cluster=cluster, team=make.team(), author=make.author())
    row.refresh_from_db()
    return row


def asked_for() -> list[list[str]]:
    return list(Campaign.objects.order_by("id").values_list("checkpoints", flat=True))


def look(after: int = 1, **limits: int) -> int:
    """A turn, so many half minutes later."""
    return check_rules_once(clock.now() + after * loop.CHECK_INTERVAL, TurnLimits(**limits))


def why() -> str:
    return EvaluationRule.objects.get().why


@pytest.mark.django_db
def test_new_checkpoint_is_evaluated_once_in_many_turns(shelf):
    made(shelf)
    look(1)
    place = lay(shelf, 100)

    assert [look(n) for n in range(2, 6)] == [1, 0, 0, 0]
    campaign = Campaign.objects.get()
    assert campaign.checkpoints == [place]
    assert campaign.rule_id == EvaluationRule.objects.get().pk
    assert campaign.user == make.user("ada")
    assert Event.objects.filter(type="evaluation_rule.started").count() == 1


@pytest.mark.django_db
def test_checkpoints_older_than_the_rule_are_ignored(shelf):
    lay(shelf, 100, at=clock.now() - timedelta(hours=1))
    made(shelf, which="every")

    look(1)
    new = lay(shelf, 200)
    look(2)

    assert asked_for() == [[new]]


@pytest.mark.django_db
def test_incomplete_checkpoint_waits_until_it_is_complete(shelf):
    made(shelf)
    place = lay(shelf, 100, whole=False)

    assert look(1) == 0
    with open(f"{place}/.metadata", "w") as file:
        file.write("bytes")

    assert look(2) == 1


@pytest.mark.django_db
def test_only_good_durable_reported_checkpoints_count(shelf):
    rule = made(shelf, which="every")
    job = make.running(make.job(cluster=shelf, gpus_per_node=1)).job
    after = clock.now() + timedelta(seconds=5)
    for step, durable, verdict in ((1, after, ""), (2, None, ""), (3, after, CheckpointVerdict.BAD)):
        Checkpoint.objects.create(
            job=job, step=step, path=f"{rule.directory}/step-{step}", durable_at=durable, verdict=verdict
        )

    look(1)

    assert asked_for() == [[f"{rule.directory}/step-1"]]


@pytest.mark.django_db
def test_reports_of_other_teams_and_directories_are_ignored(shelf):
    rule = made(shelf)
    make.team("speech", ben="researcher")
    theirs = make.running(make.job(cluster=shelf, by="ben", gpus_per_node=1)).job
    ours = make.running(make.job(cluster=shelf, gpus_per_node=1), gpus=(3,)).job
    after = clock.now() + timedelta(seconds=5)
    Checkpoint.objects.create(job=theirs, step=1, path=f"{rule.directory}/step-1", durable_at=after)
    Checkpoint.objects.create(job=ours, step=1, path=f"{rule.directory}-2/step-1", durable_at=after)

    assert look(1) == 0


@pytest.mark.django_db
def test_report_of_a_broken_checkpoint_is_ignored(shelf):
    rule = made(shelf)
    place = lay(shelf, 7, whole=False)
    job = make.running(make.job(cluster=shelf, gpus_per_node=1)).job
    Checkpoint.objects.create(job=job, step=7, path=place, durable_at=clock.now() + timedelta(seconds=5))

    assert look(1) == 0
    assert EvaluationRule.objects.get(pk=rule.pk).why == ""


@pytest.mark.django_db
def test_symlink_out_of_the_directory_is_not_followed(shelf, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "step-9").mkdir()
    for name in ("__0_0.distcp", ".metadata"):
        (elsewhere / "step-9" / name).write_text("bytes")
    made(shelf)
    look(1)
    os.symlink(elsewhere, f"{shelf.checkpoint_root}/run/aside")

    assert look(2) == 0
    assert why() == ""


@pytest.mark.django_db
def test_missing_directory_is_shown_and_reports_still_count(shelf):
    rule = made(shelf, directory=f"{shelf.checkpoint_root}/later")
    job = make.running(make.job(cluster=shelf, gpus_per_node=1)).job

    look(1)
    assert "cannot be listed (No such file or directory)" in why()
    Checkpoint.objects.create(
        job=job, step=1, path=f"{rule.directory}/step-1", durable_at=clock.now() + timedelta(seconds=5)
    )

    assert look(2) == 1


@pytest.mark.django_db
def test_incomplete_listing_is_ignored(shelf):
    made(shelf)
    look(1)
    lay(shelf, 100)

    assert look(2, listed_files=1) == 0
    assert "there are more than 1 files" in why()


@pytest.mark.django_db
def test_disabled_rule_checks_nothing_and_keeps_its_history(shelf):
    rule = made(shelf)
    look(1)
    rule_actions.change(rule, {"is_enabled": False}, author=make.author())
    lay(shelf, 100)
    assert look(2) == 0

    rule_actions.change(rule, {"is_enabled": True}, author=make.author())

    assert look(3) == 1


@pytest.mark.django_db
def test_refused_campaign_consumes_no_checkpoint(shelf):
    made(shelf, suite="later")
    look(1)
    place = lay(shelf, 100)

    assert look(2) == 0
    assert why() == "No campaign can be started: suite: pretraining has no suite 'later'; available: core."
    suite("later", team=make.team())

    assert look(3) == 1
    assert asked_for() == [[place]]
    assert why() == ""


@pytest.mark.django_db
def test_an_observed_cluster_starts_nothing_and_the_rule_says_so(shelf):
    made(shelf)
    look(1)
    lay(shelf, 100)
    Cluster.objects.update(mode="observe")

    assert look(2) == 0
    assert "seren is in mode observe" in why()


@pytest.mark.django_db
def test_rule_of_a_former_member_starts_nothing(shelf):
    made(shelf)
    look(1)
    lay(shelf, 100)
    Membership.objects.all().delete()

    assert look(2) == 0
    assert why() == "ada, who added this rule, may no longer submit jobs for pretraining."


@pytest.mark.django_db
def test_failing_rule_is_logged_once_and_does_not_delay_others(shelf, caplog):
    sick, well = made(shelf), made(shelf)
    error = ValueError("of \x00\nand more")

    with failing_statement('"scheduling_campaign"."rule_id" = %s', sick.pk, error=error):
        look(1, rules=1), look(1, rules=1), look(3, rules=1)

    sick.refresh_from_db()
    well.refresh_from_db()
    assert sick.why == "The check failed: ValueError: of ?"
    assert sick.looked_at > well.looked_at > well.created_at
    assert caplog.text.count("the check of") == 1


@pytest.mark.django_db
def test_end_of_the_turn_is_not_recorded_as_an_error_of_the_rule(shelf):
    made(shelf)

    with pytest.raises(TimeLimitExceeded), failing_statement("jobs_checkpoint", error=TimeLimitExceeded()):
        look(1)
    assert why() == ""


@pytest.mark.django_db
def test_undecodable_directory_name_hides_no_other_checkpoint(shelf):
    made(shelf)
    look(1)
    place = lay(shelf, 7)
    bad = os.fsencode(shelf.checkpoint_root) + b"/run/bad\xff/step_5"
    os.makedirs(bad)
    for name in (b"/__0_0.distcp", b"/.metadata"):
        with open(bad + name, "w") as file:
            file.write("bytes")

    assert look(2) == 1
    assert asked_for() == [[place]]


@pytest.mark.django_db
def test_too_long_path_is_reported_and_hides_no_other_checkpoint(shelf):
    made(shelf, which="every")
    look(1)
    place = lay(shelf, 7)
    os.renames(lay(shelf, 8), f"{shelf.checkpoint_root}/run/{'a' * 250}/{'b' * 250}/step-8")

    assert look(2) == 1
    assert asked_for() == [[place]]
    assert why() == "1 checkpoint skipped: path longer than 500 characters."


@pytest.mark.django_db
def test_only_one_of_two_concurrent_loops_starts_a_campaign(shelf):
    rule = made(shelf)
    suite_row = rule.team.suites.get()
    found = DueCheckpoints(start=("/ckpt/a",))
    again = EvaluationRule.objects.select_related("cluster", "team").get(pk=rule.pk)

    rule_actions.start_rule_campaign(rule, found, suite_row, clock.now())
    with pytest.raises(StateConflict):
        rule_actions.start_rule_campaign(again, found, suite_row, clock.now())

    assert asked_for() == [["/ckpt/a"]]


@pytest.mark.django_db
def test_error_in_one_rule_does_not_stop_the_others(shelf, monkeypatch):
    bad, good = made(shelf), made(shelf, pattern="*")
    look(1)
    lay(shelf, 100)
    EvaluationRule.objects.filter(pk=bad.pk).update(suite="nope")

    assert look(2) == 1
    assert Campaign.objects.get().rule_id == good.pk


@pytest.mark.django_db
def test_rule_is_checked_once_in_half_a_minute(shelf):
    now = clock.now()
    first, second = made(shelf), made(shelf, pattern="*")
    assert loop.has_due_rules(now)
    check_rules_once(now)
    assert not loop.has_due_rules(now + loop.CHECK_INTERVAL / 2)
    EvaluationRule.objects.filter(pk=first.pk).update(looked_at=now - timedelta(hours=1))
    due_now = now + loop.CHECK_INTERVAL

    loop.check_rules_once(due_now)

    assert set(EvaluationRule.objects.values_list("looked_at", flat=True)) == {due_now}
    assert second.pk > first.pk


@pytest.mark.django_db
def test_a_directory_outside_of_the_clusters_checkpoints_is_refused(shelf):
    with pytest.raises(
        InvalidField, match=f"directory: is not inside {shelf.checkpoint_root}, the checkpoint directory of seren"
    ):
        made(shelf, directory=f"{shelf.checkpoint_root}-2/run")


@pytest.mark.django_db
def test_a_removed_rule_leaves_its_campaigns(shelf):
    rule = made(shelf)
    look(1)
    lay(shelf, 100)
    look(2)

    rule_actions.remove(rule, author=make.author())

    assert Campaign.objects.get().rule_id is None
    with pytest.raises(StateConflict):
        rule_actions.change(rule, {"is_enabled": False}, author=make.author())
