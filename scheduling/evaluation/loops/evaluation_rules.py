"""Evaluation rules: find new checkpoints and start campaigns for them.

Eligible rows     Enabled rules that were not checked for half a minute, the longest unchecked first.
What a turn does  Collects complete checkpoints: those that the team's jobs reported as durable, and those found in the
                  rule's directory. The first check sets aside checkpoints older than the rule. New checkpoints start a
                  campaign, or wait for the rule's interval or limit, which the rule shows.
Failure story     Killed before a campaign is started: the next turn finds the same checkpoints. The campaign, the
                  rule's counter and the processed checkpoints are written in one transaction that checks the counter,
                  so a checkpoint never gets two campaigns by one rule. A directory cannot be listed: reported
                  checkpoints still count, and the rule shows the error. An incomplete listing is ignored. The suite is
                  gone, the cluster is in mode observe, or the user has left the team: no checkpoint is consumed; the
                  rule shows the reason and continues when it is resolved. Any other error is shown by the rule,
                  which is checked again after all others.

Listing is slow and happens outside transactions. A mount that hangs blocks this loop only.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import F, Q, QuerySet

from acmeweb.common.errors import ClaimLost, EndsTurn, InvalidField
from failures.recovery import checkpoint_listing
from failures.recovery.rules import checkpoints
from jobs.actions.one_row import skip_row_on_error
from jobs.core.lifecycle import FINAL_STATES
from jobs.core.slurm_notation import format_count
from jobs.models import Checkpoint, CheckpointVerdict, Job, TeamRole
from jobs.models.permissions import Caller
from scheduling.evaluation.actions import evaluation_rules as rule_actions
from scheduling.evaluation.reads import campaigns as campaign_reads
from scheduling.evaluation.rules.evaluation_rules import (
    ONE_DAY,
    FoundCheckpoint,
    RuleHistory,
    RuleSpec,
    due_checkpoints,
)
from scheduling.models import Campaign, EvaluationRule, ProcessedCheckpoint

log = logging.getLogger(__name__)

CHECK_INTERVAL = timedelta(seconds=30)
MAX_REPORTED_CHECKPOINTS = 2_000


@dataclass(frozen=True, kw_only=True)
class TurnLimits:
    """Limits of the work of one turn."""

    rules: int = 10  # all their listings together end before the loop's time limit
    listed_files: int = 50_000
    listing_s: float = 10.0


def has_due_rules(now: datetime) -> bool:
    return _due_rules(now).exists()


def check_rules_once(now: datetime, limits: TurnLimits = TurnLimits()) -> int:
    """Check the due rules. Return the number of campaigns started."""
    started = 0
    rows = _due_rules(now).select_related("cluster", "team", "user")
    for rule in rows.order_by(F("looked_at").asc(nulls_first=True), "id")[: limits.rules]:
        with skip_row_on_error(rule):
            try:
                started += check_rule(rule, now, limits)
            except (EndsTurn, ClaimLost):
                raise
            except Exception as error:
                _record_rule_error(rule, error, now)
    return started


def _record_rule_error(rule: EvaluationRule, error: Exception, now: datetime) -> None:
    """Show the error on the rule, which moves behind the other rules. A repeated error is not logged again."""
    message = str(error).strip().partition("\n")[0][:300].encode("utf-8", "replace").decode().replace("\x00", "?")
    why = f"The check failed: {type(error).__name__}: {message}"
    if why != rule.why:
        log.error("the check of %s failed", rule, exc_info=error)
    rule_actions.record_rule_check(rule, why, now)


def check_rule(rule: EvaluationRule, now: datetime, limits: TurnLimits) -> bool:
    there, problem = _complete_checkpoints(rule, now, limits)
    there, long = _storable_checkpoints(there)
    if rule.based_at is None:
        there = _checkpoints_after_rule(rule, there, problem, now)
    due = due_checkpoints(rule_spec(rule), there, _rule_history(rule, there, now), now)
    why = due.why or problem or long
    began = False
    if due.start and not (why := _author_refusal(rule)):
        try:
            suite = campaign_reads.find_suite(rule.suite, rule.team)
            rule_actions.start_rule_campaign(rule, due, suite, now)
            began, why = True, problem or long
        except InvalidField as error:
            why = f"No campaign can be started: {error}."
    rule_actions.record_rule_check(rule, why, now)
    return began


def _storable_checkpoints(there: list[FoundCheckpoint]) -> tuple[list[FoundCheckpoint], str]:
    """Return the checkpoints whose path fits into the database, and a sentence about the others."""
    most = ProcessedCheckpoint._meta.get_field("path").max_length or 0
    fitting = [checkpoint for checkpoint in there if len(checkpoint.path) <= most]
    long = len(there) - len(fitting)
    return fitting, f"{format_count(long, 'checkpoint')} skipped: path longer than {most} characters." if long else ""


def _checkpoints_after_rule(
    rule: EvaluationRule, there: list[FoundCheckpoint], problem: str, now: datetime
) -> list[FoundCheckpoint]:
    """Return the checkpoints that are newer than the rule, and set the others aside once the directory was listed."""
    if not problem:
        rule_actions.ignore_existing_checkpoints(
            rule, {checkpoint.path for checkpoint in there if checkpoint.at <= rule.created_at}, now
        )
    return [checkpoint for checkpoint in there if checkpoint.at > rule.created_at]


def _due_rules(now: datetime) -> QuerySet[EvaluationRule]:
    return EvaluationRule.objects.filter(Q(looked_at=None) | Q(looked_at__lte=now - CHECK_INTERVAL), is_enabled=True)


def rule_spec(rule: EvaluationRule) -> RuleSpec:
    names = ("directory", "suite", "pattern", "which", "interval", "per_day", "nodes", "checkpoint_gb", "is_enabled")
    return RuleSpec(**{name: getattr(rule, name) for name in names})


def _author_refusal(rule: EvaluationRule) -> str:
    """Return why the rule's user may not start campaigns any more, or an empty string."""
    caller = Caller(user=rule.user)
    if rule.user.is_active and caller.has(TeamRole.RESEARCHER, rule.team_id):
        return ""
    return f"{rule.user.get_username()}, who added this rule, may no longer submit jobs for {rule.team}."


def _rule_history(rule: EvaluationRule, there: list[FoundCheckpoint], now: datetime) -> RuleHistory:
    paths = [checkpoint.path for checkpoint in there]
    campaigns = Campaign.objects.filter(rule=rule)
    last = campaigns.order_by("-id").values_list("created_at", flat=True).first()
    return RuleHistory(
        seen=frozenset(ProcessedCheckpoint.objects.filter(rule=rule, path__in=paths).values_list("path", flat=True)),
        last_at=last,
        today=campaigns.filter(created_at__gt=now - ONE_DAY).count(),
    )


def _complete_checkpoints(rule: EvaluationRule, now: datetime, limits: TurnLimits) -> tuple[list[FoundCheckpoint], str]:
    """Return the complete checkpoints, and why some may be missing. A reported checkpoint that the listing shows to be
    broken does not count."""
    lying, problem = _listed_checkpoints(rule, limits)
    broken = {checkpoint.path for checkpoint in lying if not checkpoint.is_complete}
    root = rule.directory.rstrip("/")
    complete = {
        checkpoint.path: checkpoint
        for checkpoint in _reported_checkpoints(rule, now)
        if checkpoint.path.removeprefix(f"{root}/") not in broken
    }
    for checkpoint in lying:
        if checkpoint.is_complete:
            path = f"{root}/{checkpoint.path}"
            complete.setdefault(path, FoundCheckpoint(path=path, step=checkpoint.step, at=checkpoint.saved_at))
    return list(complete.values()), problem


def _listed_checkpoints(
    rule: EvaluationRule, limits: TurnLimits
) -> tuple[tuple[checkpoints.ListedCheckpoint, ...], str]:
    root = rule.cluster.checkpoint_root
    if not root:
        return (), ""
    try:
        listing = checkpoint_listing.list_checkpoint_files(root, rule.directory, limits.listed_files, limits.listing_s)
    except checkpoint_listing.CheckpointListingError as error:
        return (), str(error)
    if listing.cut:
        return (), f"The directory was not searched completely: {listing.cut}."
    return checkpoints.find_checkpoints(listing), ""


def _reported_checkpoints(rule: EvaluationRule, now: datetime) -> list[FoundCheckpoint]:
    """Return the checkpoints reported by unfinished or recent jobs. This limit keeps the cost independent of the
    history."""
    jobs = Job.objects.filter(cluster=rule.cluster_id, team=rule.team_id)
    recent = jobs.filter(~Q(state__in=sorted(FINAL_STATES)) | Q(ended_at__gt=now - ONE_DAY))
    rows = Checkpoint.objects.filter(job__in=recent, durable_at__isnull=False, path__startswith=_directory_prefix(rule))
    rows = rows.exclude(verdict=CheckpointVerdict.BAD).order_by("-id")
    return [
        FoundCheckpoint(path=path, step=step, at=at)
        for path, step, at in rows.values_list("path", "step", "durable_at")[:MAX_REPORTED_CHECKPOINTS]
    ]


def _directory_prefix(rule: EvaluationRule) -> str:
    return rule.directory.rstrip("/") + "/"
