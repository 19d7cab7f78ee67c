"""The runs on the charts of a job: the job itself, and up to four others from the URL (`compare=ID,ID`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from django.urls import reverse

from jobs.core.parsing import raise_invalid_field, short_repr
from jobs.models import Job
from jobs.models.job import JobQuerySet
from jobs.queries.comparable_jobs import comparable_jobs
from jobs.web.page import PageQuery

MAX_RUNS = 5
CHART_POINTS = 800


@dataclass(frozen=True, kw_only=True)
class ChartRun:
    """A run on the charts. `number` selects its color and line style."""

    number: int
    job: Job
    remove_url: str  # empty: the job of the page

    @property
    def data_url(self) -> str:
        return f"/api/v1/jobs/{self.job.public_id}/metrics/?{urlencode({'points': CHART_POINTS})}"


@dataclass(frozen=True, kw_only=True)
class SuggestedRun:
    job: Job
    add_url: str


def compared_jobs(job: Job, visible: JobQuerySet, address: PageQuery) -> list[Job]:
    """The other jobs of the URL: those in `compare`, and the one in `add`, which a form sends.

    Jobs that the user may not see are reported like jobs that do not exist.
    """

    def read_jobs(name: str, text: str) -> list[Job]:
        ids = [one for one in dict.fromkeys(part.strip() for part in text.split(",")) if one and one != job.public_id]
        found = {row.public_id: row for row in visible.filter(public_id__in=ids[:MAX_RUNS])}
        if missing := [one for one in ids[:MAX_RUNS] if one not in found]:
            raise_invalid_field(name, f"there is no job {short_repr(missing[0])} that you can see")
        if len(ids) >= MAX_RUNS:
            raise_invalid_field(name, f"names {len(ids)} jobs; at most {MAX_RUNS - 1} can be compared with this one")
        return [found[one] for one in ids]

    compared: list[Job] = address.read("compare", read_jobs, [])
    ids = compare_value(compared)
    both: list[Job] = address.read("add", lambda name, text: read_jobs(name, f"{ids},{text}"), compared)
    return both


def chart_runs(job: Job, compared: Sequence[Job]) -> list[ChartRun]:
    others = [
        ChartRun(number=number, job=one, remove_url=metrics_url(job, [other for other in compared if other is not one]))
        for number, one in enumerate(compared, 2)
    ]
    return [ChartRun(number=1, job=job, remove_url=""), *others]


def suggested_runs(job: Job, compared: Sequence[Job], visible: JobQuerySet) -> list[SuggestedRun]:
    """Runs that can be added; none if the charts are full."""
    if len(compared) >= MAX_RUNS - 1:
        return []
    chosen = {one.pk for one in compared}
    return [
        SuggestedRun(job=one, add_url=metrics_url(job, [*compared, one]))
        for one in comparable_jobs(job, visible)
        if one.pk not in chosen
    ]


def metrics_url(job: Job, compared: Sequence[Job]) -> str:
    """The URL of the metrics tab with these other runs."""
    query = {"tab": "metrics"} | ({"compare": compare_value(compared)} if compared else {})
    return f"{reverse('job', args=[job.public_id])}?{urlencode(query, safe=',')}"


def compare_value(compared: Sequence[Job]) -> str:
    return ",".join(one.public_id for one in compared)
