"""Charts as files: SVG that can be viewed alone, and CSV of the values."""

from __future__ import annotations

import csv

from django.http import HttpResponse
from django.template.loader import render_to_string

from failures.queries.failure_statistics import escape_formula
from scheduling.core.charts import Chart, csv_rows, draw

CHART_FORMS = ("svg", "csv")


def chart_file(chart: Chart, name: str, form: str) -> HttpResponse:
    """The chart as a download with this file name."""
    if form == "svg":
        text = render_to_string("charts/_chart.html", {"drawing": draw(chart), "is_file": True})
        response = HttpResponse(text, content_type="image/svg+xml; charset=utf-8")
    else:
        response = HttpResponse(content_type="text/csv; charset=utf-8")
        csv.writer(response).writerows([escape_formula(cell) for cell in row] for row in csv_rows(chart))
    response["Content-Disposition"] = f'attachment; filename="{name}.{form}"'
    return response
