"""The lists of incidents and of program errors: their columns, and the positions in their orders."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from failures.models import Incident
from jobs.queries import keyset
from jobs.queries.keyset import SORT_BY_ID, SortColumn, SortKey
from jobs.web.list_table import TableColumn, TableSpec, largest_first
from jobs.web.page import POSITION_READER, PageQuery

INCIDENT_SORTS = {
    "id": SORT_BY_ID,
    "attempts": SortColumn(column="attempts", kind=int),
    "lost": SortColumn(column="gpu_hours_lost", kind=float),
    "first": SortColumn(column="first_symptom_at", kind=datetime),
    "last": SortColumn(column="last_symptom_at", kind=datetime),
}
INCIDENT_TABLE = TableSpec(
    name="incidents",
    page="failures",
    default_sort="-id",
    columns=(
        largest_first("id", "No.", "c-no num", is_fixed=True),
        TableColumn(name="state", label="State", css="c-st", is_fixed=True),
        TableColumn(name="cause", label="Cause", css="c-cause", is_fixed=True),
        TableColumn(name="where", label="Where", css="c-subject"),
        largest_first("attempts", "Attempts", "c-n num"),
        largest_first("lost", "GPU-h lost", "c-n num"),
        largest_first("first", "First symptom", "c-when"),
        largest_first("last", "Last symptom", "c-when"),
        TableColumn(name="handled", label="Handled by", css="c-by"),
    ),
)
PROGRAM_TABLE = TableSpec(
    name="programs",
    page="failures",
    default_sort="-lost",
    columns=(
        TableColumn(name="cause", label="Cause", css="c-cause", sortable=True, is_fixed=True),
        TableColumn(name="signature", label="Signature", css="c-subject"),
        largest_first("incidents", "Incidents", "c-n num"),
        largest_first("attempts", "Attempts", "c-n num"),
        largest_first("lost", "GPU-h lost", "c-n num"),
        largest_first("last", "Last symptom", "c-when"),
        largest_first("newest", "Last", "c-no num", is_fixed=True),
    ),
)


def sort_keys(sort: str) -> list[SortKey]:
    return keyset.sort_keys(INCIDENT_SORTS, [sort])


def read_position(address: PageQuery, sort: str) -> list[Any] | None:
    """The position of the last incident of the page before, or None on the first page."""
    if sort == INCIDENT_TABLE.default_sort:
        before = address.read("before", POSITION_READER)
        return None if before is None else [before]
    return address.read("before", lambda name, text: keyset.decode_cursor(name, text, sort, sort_keys(sort))[1])


def cursor(row: Incident, sort: str) -> str:
    """The position of an incident as text. The order of ids is the default, and its cursor is the id."""
    if sort == INCIDENT_TABLE.default_sort:
        return str(row.pk)
    return keyset.encode_cursor(sort, False, keyset.position(sort_keys(sort), row))
