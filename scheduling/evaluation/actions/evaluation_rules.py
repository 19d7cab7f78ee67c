"""All changes to evaluation rules and to the checkpoints they have processed.

A new campaign of a rule, the checkpoints it processes and the rule's counter are written in one transaction that checks
the counter, so of two concurrent loops only one starts a campaign. A constraint of the database
(`a_rule_sees_a_checkpoint_once`) also ensures that a rule never evaluates a checkpoint twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F

from acmeweb.common import live
from acmeweb.common.errors import ClaimLost, InvalidField
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.actions.submissions import CallerTargets
from jobs.models import Cluster, Team
from scheduling.evaluation.actions import campaigns as campaign_actions
from scheduling.evaluation.reads.campaigns import find_suite
from scheduling.evaluation.rules.campaign_requests import CampaignSpec
from scheduling.evaluation.rules.evaluation_rules import DueCheckpoints, RuleSpec, parse_rule
from scheduling.models import Campaign, EvaluationRule, ProcessedCheckpoint, Suite

CAMPAIGNS_TOPIC = "campaigns"
MAX_RULES_PER_TEAM = 100  # each rule lists a directory every half minute


def create_rule_from_request(request: Mapping[str, Any], places: CallerTargets, author: Author) -> EvaluationRule:
    """Create a rule from a request of a page or the API. Raises InvalidField or PermissionDenied."""
    values = dict(request)
    team = places.resolve_team(values.pop("team", None))
    cluster = places.resolve_cluster(values.pop("cluster", None))
    spec = parse_rule(values)
    find_suite(spec.suite, team)
    return create_rule(spec, cluster=cluster, team=team, author=author)


@transaction.atomic
def create_rule(spec: RuleSpec, *, cluster: Cluster, team: Team, author: Author) -> EvaluationRule:
    """Create a rule. Its first check sets aside existing checkpoints. Raises InvalidField."""
    Team.objects.select_for_update().get(pk=team.pk)
    root = cluster.checkpoint_root.rstrip("/")
    if root and not f"{spec.directory}/".startswith(f"{root}/"):
        raise InvalidField("directory", f"is not inside {root}, the checkpoint directory of {cluster}")
    if EvaluationRule.objects.filter(team=team).count() >= MAX_RULES_PER_TEAM:
        raise InvalidField("team", f"{team} already has {MAX_RULES_PER_TEAM} rules; remove one first")
    rule = EvaluationRule.objects.create(cluster=cluster, team=team, user_id=author.user_id, **asdict(spec))
    _log_rule_event(rule, "evaluation_rule.made", author)
    return rule


@transaction.atomic
def change(rule: EvaluationRule, fields: Mapping[str, Any], *, author: Author) -> None:
    """Change the fields, and clear `why`, which described the old settings."""
    row = _lock_rule(rule)
    for name, value in {**fields, "why": ""}.items():
        setattr(row, name, value)
    row.save(update_fields=[*fields, "why"])
    _log_rule_event(row, "evaluation_rule.changed", author, changed=sorted(fields))


@transaction.atomic
def remove(rule: EvaluationRule, *, author: Author) -> None:
    """Delete the rule. Its campaigns are kept."""
    row = _lock_rule(rule)
    _log_rule_event(row, "evaluation_rule.removed", author)
    row.delete()


def _lock_rule(rule: EvaluationRule) -> EvaluationRule:
    row = EvaluationRule.objects.select_for_update(of=("self",)).filter(pk=rule.pk).first()
    if row is None:
        raise ClaimLost(f"{rule} was removed in the meantime")
    return row


# --- actions of the loop


@transaction.atomic
def ignore_existing_checkpoints(rule: EvaluationRule, paths: Collection[str], now: datetime) -> None:
    """Set aside the checkpoints that are older than the rule. Runs once per rule."""
    if not EvaluationRule.objects.filter(pk=rule.pk, based_at=None).update(based_at=now):
        raise ClaimLost(f"the existing checkpoints of {rule} were already set aside")
    ProcessedCheckpoint.objects.bulk_create(ProcessedCheckpoint(rule=rule, path=path) for path in paths)
    rule.based_at = now


@transaction.atomic
def start_rule_campaign(rule: EvaluationRule, due: DueCheckpoints, suite: Suite, now: datetime) -> Campaign:
    """Start a campaign on behalf of the rule's user. Raises ClaimLost or InvalidField, without changes."""
    unchanged = EvaluationRule.objects.filter(pk=rule.pk, is_enabled=True, started=rule.started)
    if not unchanged.update(started=F("started") + 1):
        raise ClaimLost(f"{rule} was disabled, or another worker has started a campaign for it")
    spec = CampaignSpec(checkpoints=due.start, nodes=rule.nodes, checkpoint_gb=rule.checkpoint_gb)
    author = Author(by=str(rule), user_id=rule.user_id)
    campaign = campaign_actions.create_campaign(
        spec, suite=suite, cluster=rule.cluster, team=rule.team, author=author, now=now
    )
    Campaign.objects.filter(pk=campaign.pk).update(rule=rule)
    ProcessedCheckpoint.objects.bulk_create(
        [ProcessedCheckpoint(rule=rule, path=path, campaign=campaign) for path in due.start]
        + [ProcessedCheckpoint(rule=rule, path=path) for path in due.skip]
    )
    _log_rule_event(
        rule, "evaluation_rule.started", author, campaign=campaign.public_id, passed_over=list(due.skip)[:100]
    )
    return campaign


def record_rule_check(rule: EvaluationRule, why: str, now: datetime) -> None:
    """Record the time and the message of a check."""
    EvaluationRule.objects.filter(pk=rule.pk).update(looked_at=now, why=why[:1000])
    if why != rule.why:
        live.publish_on_commit(CAMPAIGNS_TOPIC)


def _log_rule_event(rule: EvaluationRule, what: str, author: Author, **detail: Any) -> None:
    about = {"rule": rule.pk, "team": rule.team.name, "directory": rule.directory, "suite": rule.suite}
    journal.new_event(what, author, cluster_id=rule.cluster_id, detail={**about, **detail}).save()
    live.publish_on_commit(CAMPAIGNS_TOPIC)
