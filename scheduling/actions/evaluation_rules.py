"""The only code that changes rules of evaluation, and what they have dealt with.

A campaign that a rule asks for, the checkpoints that the rule is through with and its count of campaigns are one
transaction, guarded by that count: of two loops that looked at the same, one asks. That a checkpoint is never evaluated
twice by one rule is held by the database besides (`a_rule_sees_a_checkpoint_once`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F

from acmeweb.common import live
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.core.parsing import InvalidField
from jobs.models import Cluster, Team
from scheduling.actions import campaigns as campaign_actions
from scheduling.actions.campaigns import CampaignStateConflict
from scheduling.evaluation.campaign_requests import CampaignSpec
from scheduling.evaluation.rules import DueCheckpoints, RuleSpec
from scheduling.models import Campaign, EvaluationRule, RuleSighting, Suite

CAMPAIGNS_TOPIC = "campaigns"
MAX_RULES_PER_TEAM = 100  # of a team: each is a look into a directory every half minute


@transaction.atomic
def create_rule(spec: RuleSpec, *, cluster: Cluster, team: Team, author: Author) -> EvaluationRule:
    """What is there by now is set aside at its first look. Raises BadSpec."""
    Team.objects.select_for_update().get(pk=team.pk)
    root = cluster.checkpoint_root.rstrip("/")
    if root and not f"{spec.directory}/".startswith(f"{root}/"):
        raise InvalidField("directory", f"is not beneath {root}, where {cluster} keeps checkpoints")
    if EvaluationRule.objects.filter(team=team).count() >= MAX_RULES_PER_TEAM:
        raise InvalidField("team", f"{team} has {MAX_RULES_PER_TEAM} rules already; remove one")
    made = EvaluationRule.objects.create(cluster=cluster, team=team, user_id=author.user_id, **asdict(spec))
    _log_rule_event(made, "evaluation_rule.made", author)
    return made


@transaction.atomic
def change(rule: EvaluationRule, fields: Mapping[str, Any], *, author: Author) -> None:
    """What it says of itself was about how it had been."""
    row = _lock_rule(rule)
    for name, value in {**fields, "why": ""}.items():
        setattr(row, name, value)
    row.save(update_fields=[*fields, "why"])
    _log_rule_event(row, "evaluation_rule.changed", author, changed=sorted(fields))


@transaction.atomic
def remove(rule: EvaluationRule, *, author: Author) -> None:
    """Its campaigns stay."""
    row = _lock_rule(rule)
    _log_rule_event(row, "evaluation_rule.removed", author)
    row.delete()


def _lock_rule(rule: EvaluationRule) -> EvaluationRule:
    row = EvaluationRule.objects.select_for_update(of=("self",)).filter(pk=rule.pk).first()
    if row is None:
        raise CampaignStateConflict(f"{rule} was removed by somebody else")
    return row


# --- what the loop does


@transaction.atomic
def ignore_existing_checkpoints(rule: EvaluationRule, paths: Collection[str], now: datetime) -> None:
    """Once: what was there before the rule is nothing new."""
    if not EvaluationRule.objects.filter(pk=rule.pk, based_at=None).update(based_at=now):
        raise CampaignStateConflict(f"{rule} had its first look already")
    RuleSighting.objects.bulk_create(RuleSighting(rule=rule, path=path) for path in paths)
    rule.based_at = now


@transaction.atomic
def start_rule_campaign(rule: EvaluationRule, due: DueCheckpoints, suite: Suite, now: datetime) -> Campaign:
    """Ask for the campaign in the name of whoever made the rule. Raises Gone, or BadSpec and changes nothing."""
    mine = EvaluationRule.objects.filter(pk=rule.pk, is_on=True, started=rule.started)
    if not mine.update(started=F("started") + 1):
        raise CampaignStateConflict(f"{rule} was switched off, or somebody else has started a campaign by it")
    wanted = CampaignSpec(checkpoints=due.start, nodes=rule.nodes, weights_gb=rule.weights_gb)
    author = Author(by=str(rule), user_id=rule.user_id)
    made = campaign_actions.create_campaign(
        wanted, suite=suite, cluster=rule.cluster, team=rule.team, author=author, now=now
    )
    Campaign.objects.filter(pk=made.pk).update(rule=rule)
    RuleSighting.objects.bulk_create(
        [RuleSighting(rule=rule, path=path, campaign=made) for path in due.start]
        + [RuleSighting(rule=rule, path=path) for path in due.skip]
    )
    _log_rule_event(rule, "evaluation_rule.started", author, campaign=made.public_id, passed_over=list(due.skip)[:100])
    return made


def record_rule_check(rule: EvaluationRule, why: str, now: datetime) -> None:
    """Words alone."""
    EvaluationRule.objects.filter(pk=rule.pk).update(looked_at=now, why=why[:1000])
    if why != rule.why:
        live.publish_on_commit(CAMPAIGNS_TOPIC)


def _log_rule_event(rule: EvaluationRule, what: str, author: Author, **detail: Any) -> None:
    about = {"rule": rule.pk, "team": rule.team.name, "directory": rule.directory, "suite": rule.suite}
    journal.new_event(what, author, cluster_id=rule.cluster_id, detail={**about, **detail}).save()
    live.publish_on_commit(CAMPAIGNS_TOPIC)
