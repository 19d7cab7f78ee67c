"""Evaluation rules: look for new checkpoints, and ask for campaigns of them.

Who is eligible   rules that are on and were not looked at for half a minute; who waits longest first.
What a turn does  Complete checkpoints are gathered: those that jobs of the team reported as durable, and those that lie
                  in the rule's directory and keep their convention. The first look sets aside what is older than the
                  rule. What is new becomes a campaign, or waits for the rule's interval or limit, and the rule says so.
Failure story     Killed before a campaign is asked for: the next turn finds the same checkpoints and asks. Campaign,
                  count of campaigns and "this rule is through with it" are one transaction guarded by the count, so
                  killed anywhere, run twice or late, no checkpoint has two campaigns by one rule. A directory that
                  cannot be listed: what jobs reported still counts, and the rule says why. A listing that had to
                  stop is trusted in nothing. The suite is gone, the cluster is only observed, the person has left
                  the team: no checkpoint is used up; the rule says why, and asks when that has changed. Whatever
                  else goes wrong with a rule is said by it, and its turn comes again after all others.

Listing is the slow part, and done while no transaction is open; a mount that hangs keeps this loop alone waiting.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from celery.exceptions import SoftTimeLimitExceeded
from django.db.models import F, Q, QuerySet

from failures.actions import checkpoint_listing
from failures.recovery import checkpoints
from jobs.actions.one_row import skip_row_on_error
from jobs.core.lifecycle import FINAL_STATES
from jobs.core.parsing import InvalidField
from jobs.core.turn_errors import EndsTurn
from jobs.models import Checkpoint, CheckpointVerdict, Job, TeamRole
from jobs.models.permissions import Caller
from scheduling.actions import evaluation_rules as verbs
from scheduling.actions.campaigns import CampaignStateConflict
from scheduling.evaluation.rules import ONE_DAY, FoundCheckpoint, RuleHistory, RuleSpec, due_checkpoints
from scheduling.models import Campaign, EvaluationRule, RuleSighting
from scheduling.queries import campaigns as campaign_queries

log = logging.getLogger(__name__)

CHECK_INTERVAL = timedelta(seconds=30)
MAX_LISTED_FILES = 50_000
MAX_LISTING_S = 10.0
MAX_RULES_PER_TURN = 10  # rules; all their listings together end before the lease does
MAX_REPORTED_CHECKPOINTS = 2_000


def has_due_rules(now: datetime) -> bool:
    return _due_rules(now).exists()


def check_rules_once(now: datetime) -> int:
    """How many campaigns were asked for."""
    started = 0
    rows = _due_rules(now).select_related("cluster", "team", "user")
    for rule in rows.order_by(F("looked_at").asc(nulls_first=True), "id")[:MAX_RULES_PER_TURN]:
        with skip_row_on_error(rule):
            try:
                started += check_rule(rule, now)
            except CampaignStateConflict as gone:
                log.info("%s; the next turn looks again", gone)
            except (EndsTurn, SoftTimeLimitExceeded):
                raise
            except Exception as error:
                _record_rule_error(rule, error, now)
    return started


def _record_rule_error(rule: EvaluationRule, error: Exception, now: datetime) -> None:
    """To the end of the line, so that it keeps nobody waiting. What is known already is not logged again."""
    said = str(error).strip().partition("\n")[0][:300].encode("utf-8", "replace").decode().replace("\x00", "?")
    why = f"It could not be looked at: {type(error).__name__}: {said}"
    if why != rule.why:
        log.error("%s could not be looked at", rule, exc_info=error)
    verbs.record_rule_check(rule, why, now)


def check_rule(rule: EvaluationRule, now: datetime) -> bool:
    there, trouble = _complete_checkpoints(rule, now)
    there, long = _storable_checkpoints(there)
    if rule.based_at is None:
        there = _checkpoints_after_rule(rule, there, trouble, now)
    found = due_checkpoints(rule_spec(rule), there, _rule_history(rule, there, now), now)
    why = found.why or trouble or long
    began = False
    if found.start and not (why := _author_refusal(rule)):
        try:
            suite = campaign_queries.find_suite(rule.suite, rule.team)
            verbs.start_rule_campaign(rule, found, suite, now)
            began, why = True, trouble or long
        except InvalidField as bad:
            why = f"No campaign can be asked for: {bad}."
    verbs.record_rule_check(rule, why, now)
    return began


def _storable_checkpoints(there: list[FoundCheckpoint]) -> tuple[list[FoundCheckpoint], str]:
    """Paths that can be remembered, and a sentence on the others."""
    most = RuleSighting._meta.get_field("path").max_length or 0
    fitting = [one for one in there if len(one.path) <= most]
    left = len(there) - len(fitting)
    return fitting, f"{left} of its checkpoints have a path of more than {most} characters." if left else ""


def _checkpoints_after_rule(
    rule: EvaluationRule, there: list[FoundCheckpoint], trouble: str, now: datetime
) -> list[FoundCheckpoint]:
    """Those that are newer than the rule. As long as its directory cannot be listed, its first look is to come."""
    if not trouble:
        verbs.ignore_existing_checkpoints(rule, {one.path for one in there if one.at <= rule.created_at}, now)
    return [one for one in there if one.at > rule.created_at]


def _due_rules(now: datetime) -> QuerySet[EvaluationRule]:
    return EvaluationRule.objects.filter(Q(looked_at=None) | Q(looked_at__lte=now - CHECK_INTERVAL), is_on=True)


def rule_spec(rule: EvaluationRule) -> RuleSpec:
    names = ("directory", "suite", "pattern", "which", "interval", "per_day", "nodes", "weights_gb", "is_on")
    return RuleSpec(**{name: getattr(rule, name) for name in names})


def _author_refusal(rule: EvaluationRule) -> str:
    """Whoever made it may have left since."""
    caller = Caller(user=rule.user)
    if rule.user.is_active and caller.has(TeamRole.RESEARCHER, rule.team_id):
        return ""
    return f"{rule.user.get_username()}, who made it, may not evaluate for {rule.team} any more."


def _rule_history(rule: EvaluationRule, there: list[FoundCheckpoint], now: datetime) -> RuleHistory:
    paths = [one.path for one in there]
    campaigns = Campaign.objects.filter(rule=rule)
    last = campaigns.order_by("-id").values_list("created_at", flat=True).first()
    return RuleHistory(
        seen=frozenset(RuleSighting.objects.filter(rule=rule, path__in=paths).values_list("path", flat=True)),
        last_at=last,
        today=campaigns.filter(created_at__gt=now - ONE_DAY).count(),
    )


def _complete_checkpoints(rule: EvaluationRule, now: datetime) -> tuple[list[FoundCheckpoint], str]:
    """What is complete, and why that may not be all. What a listing knows to be broken is not, whoever said so."""
    lying, trouble = _listed_checkpoints(rule)
    broken = {one.path for one in lying if not one.is_complete}
    root = rule.directory.rstrip("/")
    found = {
        one.path: one for one in _reported_checkpoints(rule, now) if one.path.removeprefix(f"{root}/") not in broken
    }
    for one in lying:
        if one.is_complete:
            path = f"{root}/{one.path}"
            found.setdefault(path, FoundCheckpoint(path=path, step=one.step, at=one.saved_at))
    return list(found.values()), trouble


def _listed_checkpoints(rule: EvaluationRule) -> tuple[tuple[checkpoints.ListedCheckpoint, ...], str]:
    root = rule.cluster.checkpoint_root
    if not root:
        return (), ""
    try:
        listing = checkpoint_listing.list_checkpoint_files(root, rule.directory, MAX_LISTED_FILES, MAX_LISTING_S)
    except checkpoint_listing.CheckpointListingError as none:
        return (), str(none)
    if listing.cut:
        return (), f"Its directory was not looked through: {listing.cut}."
    return checkpoints.find_checkpoints(listing), ""


def _reported_checkpoints(rule: EvaluationRule, now: datetime) -> list[FoundCheckpoint]:
    """By jobs that are not long over: their number does not grow with the history."""
    jobs = Job.objects.filter(cluster=rule.cluster_id, team=rule.team_id)
    lately = jobs.filter(~Q(state__in=sorted(FINAL_STATES)) | Q(ended_at__gt=now - ONE_DAY))
    rows = Checkpoint.objects.filter(job__in=lately, durable_at__isnull=False, path__startswith=_directory_prefix(rule))
    rows = rows.exclude(verdict=CheckpointVerdict.BAD).order_by("-id")
    return [
        FoundCheckpoint(path=path, step=step, at=at)
        for path, step, at in rows.values_list("path", "step", "durable_at")[:MAX_REPORTED_CHECKPOINTS]
    ]


def _directory_prefix(rule: EvaluationRule) -> str:
    return rule.directory.rstrip("/") + "/"
