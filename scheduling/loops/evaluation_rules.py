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

from failures import checkpoints, shelves
from jobs.lifecycle import FINAL
from jobs.models import Checkpoint, Job, Role, Verdict
from jobs.readers import BadSpec
from jobs.rights import Caller
from scheduling import evaluating
from scheduling import evaluation_rule_actions as verbs
from scheduling.evaluation.rules import DAY, Appeared, Asked, RuleSpec, due
from scheduling.evaluation_actions import Gone
from scheduling.loops.rows import TurnOver, one_row
from scheduling.models import Campaign, EvaluationRule, RuleSighting

log = logging.getLogger(__name__)

LOOK_EVERY = timedelta(seconds=30)
MOST_FILES = 50_000
MOST_LISTING_S = 10.0
MOST_A_TURN = 10  # rules; all their listings together end before the lease does
MOST_REPORTED = 2_000


def wanted(now: datetime) -> bool:
    return _rows(now).exists()


def rules_once(now: datetime) -> int:
    """How many campaigns were asked for."""
    started = 0
    rows = _rows(now).select_related("cluster", "team", "user")
    for rule in rows.order_by(F("looked_at").asc(nulls_first=True), "id")[:MOST_A_TURN]:
        with one_row(rule):
            try:
                started += rule_once(rule, now)
            except Gone as gone:
                log.info("%s; the next turn looks again", gone)
            except (TurnOver, SoftTimeLimitExceeded):
                raise
            except Exception as error:
                _failed(rule, error, now)
    return started


def _failed(rule: EvaluationRule, error: Exception, now: datetime) -> None:
    """To the end of the line, so that it keeps nobody waiting. What is known already is not logged again."""
    said = str(error).strip().partition("\n")[0][:300].encode("utf-8", "replace").decode().replace("\x00", "?")
    why = f"It could not be looked at: {type(error).__name__}: {said}"
    if why != rule.why:
        log.error("%s could not be looked at", rule, exc_info=error)
    verbs.looked(rule, why, now)


def rule_once(rule: EvaluationRule, now: datetime) -> bool:
    there, trouble = _there(rule, now)
    there, long = _fitting(there)
    if rule.based_at is None:
        there = _based(rule, there, trouble, now)
    found = due(spec_of(rule), there, _asked(rule, there, now), now)
    why = found.why or trouble or long
    began = False
    if found.start and not (why := _refused(rule)):
        try:
            suite = evaluating.suite_called(rule.suite, rule.team)
            verbs.begin(rule, found, suite, now)
            began, why = True, trouble or long
        except BadSpec as bad:
            why = f"No campaign can be asked for: {bad}."
    verbs.looked(rule, why, now)
    return began


def _fitting(there: list[Appeared]) -> tuple[list[Appeared], str]:
    """Paths that can be remembered, and a sentence on the others."""
    most = RuleSighting._meta.get_field("path").max_length or 0
    fitting = [one for one in there if len(one.path) <= most]
    left = len(there) - len(fitting)
    return fitting, f"{left} of its checkpoints have a path of more than {most} characters." if left else ""


def _based(rule: EvaluationRule, there: list[Appeared], trouble: str, now: datetime) -> list[Appeared]:
    """Those that are newer than the rule. As long as its directory cannot be listed, its first look is to come."""
    if not trouble:
        verbs.set_aside(rule, {one.path for one in there if one.at <= rule.created_at}, now)
    return [one for one in there if one.at > rule.created_at]


def _rows(now: datetime) -> QuerySet[EvaluationRule]:
    return EvaluationRule.objects.filter(Q(looked_at=None) | Q(looked_at__lte=now - LOOK_EVERY), is_on=True)


def spec_of(rule: EvaluationRule) -> RuleSpec:
    names = ("directory", "suite", "pattern", "which", "interval", "per_day", "nodes", "weights_gb", "is_on")
    return RuleSpec(**{name: getattr(rule, name) for name in names})


def _refused(rule: EvaluationRule) -> str:
    """Whoever made it may have left since."""
    caller = Caller(user=rule.user)
    if rule.user.is_active and caller.has(Role.RESEARCHER, rule.team_id):
        return ""
    return f"{rule.user.get_username()}, who made it, may not evaluate for {rule.team} any more."


def _asked(rule: EvaluationRule, there: list[Appeared], now: datetime) -> Asked:
    paths = [one.path for one in there]
    campaigns = Campaign.objects.filter(rule=rule)
    last = campaigns.order_by("-id").values_list("created_at", flat=True).first()
    return Asked(
        seen=frozenset(RuleSighting.objects.filter(rule=rule, path__in=paths).values_list("path", flat=True)),
        last_at=last,
        today=campaigns.filter(created_at__gt=now - DAY).count(),
    )


def _there(rule: EvaluationRule, now: datetime) -> tuple[list[Appeared], str]:
    """What is complete, and why that may not be all. What a listing knows to be broken is not, whoever said so."""
    lying, trouble = _lying(rule)
    broken = {one.path for one in lying if not one.is_whole}
    root = rule.directory.rstrip("/")
    found = {one.path: one for one in _reported(rule, now) if one.path.removeprefix(f"{root}/") not in broken}
    for one in lying:
        if one.is_whole:
            path = f"{root}/{one.path}"
            found.setdefault(path, Appeared(path=path, step=one.step, at=one.saved_at))
    return list(found.values()), trouble


def _lying(rule: EvaluationRule) -> tuple[tuple[checkpoints.Found, ...], str]:
    root = rule.cluster.checkpoint_root
    if not root:
        return (), ""
    try:
        listing = shelves.listing(root, rule.directory, MOST_FILES, MOST_LISTING_S)
    except shelves.NoShelf as none:
        return (), str(none)
    if listing.cut:
        return (), f"Its directory was not looked through: {listing.cut}."
    return checkpoints.find(listing), ""


def _reported(rule: EvaluationRule, now: datetime) -> list[Appeared]:
    """By jobs that are not long over: their number does not grow with the history."""
    jobs = Job.objects.filter(cluster=rule.cluster_id, team=rule.team_id)
    lately = jobs.filter(~Q(state__in=sorted(FINAL)) | Q(ended_at__gt=now - DAY))
    rows = Checkpoint.objects.filter(job__in=lately, durable_at__isnull=False, path__startswith=_inside(rule))
    rows = rows.exclude(verdict=Verdict.BAD).order_by("-id")
    return [
        Appeared(path=path, step=step, at=at)
        for path, step, at in rows.values_list("path", "step", "durable_at")[:MOST_REPORTED]
    ]


def _inside(rule: EvaluationRule) -> str:
    return rule.directory.rstrip("/") + "/"
