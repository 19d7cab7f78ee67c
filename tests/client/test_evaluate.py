"""`acme evaluate` and `acme suite`: request, follow and show campaigns."""

from __future__ import annotations

import json

import pytest
from acme_client import cli, evaluate
from acme_client.api import Refused

from jobs.models import Cluster, Membership, TeamRole, clock
from scheduling.models import Campaign, Evaluation, EvaluationRule
from tests.jobs.api import api_make as make

pytestmark = pytest.mark.django_db

SUITE = {
    "name": "core",
    "output_root": "/shared/out",
    "infer": "answer",
    "datasets": [{"name": "alpha", "samples": 100}],
}


@pytest.fixture
def suite(acme, tmp_path):
    Cluster.objects.update(log_root="/nonexistent")
    file = tmp_path / "suite.json"
    file.write_text(json.dumps(SUITE))
    assert acme("suite", file, "-A", "vision").stdout == "core@1\n"
    return file


@pytest.fixture
def ended(monkeypatch):
    """A sleep of two seconds during which the campaign ends."""

    def end(_seconds):
        Evaluation.objects.update(state="COMPLETED", scores={"accuracy": 0.25}, ended_at=clock.now())
        Campaign.objects.update(state="COMPLETED", started_at=clock.now(), ended_at=clock.now())

    monkeypatch.setattr(evaluate.time, "sleep", end)


def test_checkpoints_are_evaluated_and_their_results_shown(acme, suite, ended):
    result = acme("evaluate", "/ckpt/a", "/ckpt/b", "--suite", "core", "--nodes", 2, "-A", "vision")

    assert result.exit_code == 0, result.stderr
    _, *rows = (line.split() for line in result.stdout.splitlines())
    assert rows == [[f"/ckpt/{name}", "alpha", "COMPLETED", "accuracy", "0.25"] for name in "ab"]
    assert "is COMPLETED, 2 of 2 evaluations are done" in result.stderr
    assert Campaign.objects.get().nodes == 2


def test_a_campaign_is_named_on_the_command_line(acme, suite):
    acme("evaluate", "/ckpt/a", "-s", "core", "--no-wait", "-A", "vision", "--name", "Release candidate")

    assert Campaign.objects.get().name == "Release candidate"


def test_without_waiting_only_the_id_is_printed_and_it_can_be_followed_later(acme, suite, ended):
    id = acme("evaluate", "/ckpt/a", "-s", "core", "--no-wait", "-A", "vision").stdout.strip()

    told = json.loads(acme("evaluate", "--id", id, "-o", "json").stdout)

    assert told["id"] == id
    assert told["results"][0]["scores"] == {"accuracy": 0.25}


def test_a_failed_campaign_is_exit_code_1(acme, suite):
    id = acme("evaluate", "/ckpt/a", "-s", "core", "--no-wait", "-A", "vision").stdout.strip()
    Campaign.objects.update(state="FAILED", why="1 evaluation failed.")

    assert acme("evaluate", "--id", id).exit_code == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "Give either checkpoints, the --id of a campaign, or a directory to --watch."),
        (("/a", "--watch", "/ckpt", "-s", "core"), "Give either checkpoints"),
        (("--watch", "/ckpt"), "--suite is missing"),
        (("--watch", "/ckpt", "-s", "core", "--rerun"), "not to --watch"),
        (("/a",), "--suite is missing"),
        (("/a", "-s", "core", "--per-day", "3"), "require --watch"),
        (("/a", "-s", "core", "-N", "1", "--deadline", "1:00"), "--nodes and --deadline exclude each other"),
        (("/a", "-s", "core", "--deadline", "2026-99-01T"), "is not a time"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_one_sentence(acme, words, sentence):
    result = acme("evaluate", *words)

    assert result.exit_code == 2
    assert sentence in result.stderr


def test_a_deadline_is_a_time_from_now_or_a_moment(acme, suite):
    for text in ("2:00:00", "2099-01-01T08:00"):
        acme("evaluate", "/ckpt/a", "-s", "core", "--deadline", text, "--no-wait", "-A", "vision")

    first, second = Campaign.objects.order_by("id")
    assert first.deadline_at < second.deadline_at
    assert second.deadline_at.year in (2098, 2099)


@pytest.mark.parametrize("text", ["banana", "", "2026-13-01T08:00"])
def test_invalid_deadline_names_the_option(acme, suite, text):
    result = acme("evaluate", "/ckpt/a", "-s", "core", "--deadline", text, "--no-wait", "-A", "vision")

    assert result.exit_code == 2
    assert "--deadline" in result.stderr and "is not a time" in result.stderr


def test_invalid_suite_is_refused_with_the_servers_sentence(acme, tmp_path):
    file = tmp_path / "suite.json"
    file.write_text(json.dumps(SUITE | {"datasets": [{"name": "x"}]}))

    with pytest.raises(Refused, match=r"datasets\[1\].samples: is missing"):
        acme("suite", file, "-A", "vision")


def test_file_without_json_is_named(acme, tmp_path):
    file = tmp_path / "suite.json"
    file.write_text("{")

    result = acme("suite", file)

    assert result.exit_code == 2
    assert str(file) in result.stderr


def test_suites_are_listed(acme, suite):
    assert "core" in acme("suite").stdout


def test_watch_creates_a_rule_that_can_be_listed_changed_and_removed(acme, suite):
    how = ("--per-day", "3", "--pattern", "iter_*", "-N", "2")
    id = acme("evaluate", "--watch", "/ckpt/run", "-s", "core", "-A", "vision", *how).stdout.strip()
    assert "/ckpt/run" in acme("rules").stdout
    row = EvaluationRule.objects.get()
    assert (row.per_day, row.pattern, row.nodes) == (3, "iter_*", 2)

    acme("rules", id, "--off", "--which", "every", "--interval", "1:00:00", "--nodes", "0")
    row = EvaluationRule.objects.get()
    assert (str(row.pk), row.is_enabled, row.which, row.interval.total_seconds()) == (id, False, "every", 3600)
    assert row.nodes is None
    acme("rules", id, "--remove")

    assert not EvaluationRule.objects.exists()


def test_user_with_several_teams_is_told_to_select_one(acme, suite):
    Membership.objects.create(team=make.team("speech"), user=make.person("ada"), role=TeamRole.RESEARCHER)

    with pytest.raises(Refused) as refused:
        acme("evaluate", "--watch", "/ckpt/run", "-s", "core")

    assert cli._error_message(refused.value) == ("team: is missing; you may submit for speech, vision. Set it with -A.")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(("--off",), "The id of the rule is missing"), (("7", "--off", "--remove"), "exclude each other")],
)
def test_change_without_a_rule_is_wrong_usage(acme, words, sentence):
    result = acme("rules", *words)

    assert result.exit_code == 2
    assert sentence in result.stderr
