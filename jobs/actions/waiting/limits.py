"""Limits on the number of waiting jobs, per user and per team.

A large request takes a lock of its user and its team, so that parallel ones count each other. Small requests never
wait: together they can exceed a limit by a hundred jobs for each request in progress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from django.conf import settings
from django.db import connection

from acmeweb.common.errors import InvalidField
from jobs.actions.submit import SubmissionGroup

LARGE_REQUEST = 100
USER_LOCKS, TEAM_LOCKS = 0x4A0B1, 0x4A0B2  # spaces of advisory locks
# Stops counting at the limit, so its cost is independent of the number of jobs
COUNT_WAITING_SQL = """
SELECT 'user', k, (SELECT count(*) FROM (SELECT FROM jobs_job WHERE state = 'PENDING' AND user_id = k LIMIT %s) w)
FROM unnest(%s::bigint[]) k
UNION ALL
SELECT 'team', k, (SELECT count(*) FROM (SELECT FROM jobs_job WHERE state = 'PENDING' AND team_id = k LIMIT %s) w)
FROM unnest(%s::bigint[]) k
"""

Owner = tuple[str, int | None]  # user or team, and its key


def refuse_too_many_waiting(group: SubmissionGroup) -> None:
    """Raise InvalidField if the user or the team would have too many waiting jobs. Call it in the transaction that
    submits."""
    if _job_count(group) > LARGE_REQUEST:
        _lock(group)
    if error := waiting_limit_errors([group])[0]:
        raise error


def waiting_limit_errors(groups: Sequence[SubmissionGroup]) -> list[InvalidField | None]:
    """Return why each group must not be submitted, if those before it are, or None. One query."""
    limits = {"user": settings.ACME_MAX_WAITING_PER_USER, "team": settings.ACME_MAX_WAITING_PER_TEAM}
    limited = {kind: limit for kind, limit in limits.items() if limit}
    if not limited or not groups:
        return [None] * len(groups)
    waiting = _count_waiting(groups, limited)
    errors = []
    for group in groups:
        more = _job_count(group)
        owners = [owner for owner in _owners(group) if owner[0] in limited]
        exceeded = next((owner for owner in owners if waiting[owner] + more > limited[owner[0]]), None)
        errors.append(_error(group, exceeded, waiting[exceeded], more, limited[exceeded[0]]) if exceeded else None)
        if not exceeded:
            waiting.update(dict.fromkeys(owners, more))
    return errors


def _count_waiting(groups: Sequence[SubmissionGroup], limits: Mapping[str, int]) -> Counter[Owner]:
    keys = {
        kind: sorted({key for group in groups for k, key in _owners(group) if k == kind and key}) for kind in limits
    }
    params = [value for kind in ("user", "team") for value in (limits.get(kind, 0), keys.get(kind, []))]
    with connection.cursor() as cursor:
        cursor.execute(COUNT_WAITING_SQL, params)
        return Counter({(kind, key): count for kind, key, count in cursor.fetchall()})


def _error(group: SubmissionGroup, owner: Owner, waiting: int, more: int, limit: int) -> InvalidField:
    whose = "you have" if owner[0] == "user" else f"{group.team} has"
    jobs = f"{more} more"
    return InvalidField(owner[0], f"{whose} {waiting} waiting jobs; {jobs} would exceed the limit of {limit}")


def _owners(group: SubmissionGroup) -> tuple[Owner, Owner]:
    return ("user", group.author.user_id), ("team", group.team.pk)


def _job_count(group: SubmissionGroup) -> int:
    return sum(len(spec.array) or 1 for spec in group.specs)


def _lock(group: SubmissionGroup) -> None:
    """Hold the locks until the end of the transaction; users before teams, so that nobody deadlocks."""
    with connection.cursor() as cursor:
        for space, key in ((USER_LOCKS, group.author.user_id), (TEAM_LOCKS, group.team.pk)):
            cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [space, key])
