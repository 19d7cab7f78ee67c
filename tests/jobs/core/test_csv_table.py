from __future__ import annotations

import pytest

from jobs.traces.csv_table import CsvTable


def table(*lines: str, optional=(), **settings) -> CsvTable:
    return CsvTable(lines, "t.csv", ["team", "gpus"], optional=optional, error=ValueError, **settings)


def test_rows_have_their_line_and_the_requested_columns():
    rows = list(table("GPUs, Team ,note\n", "8, vision ,x\n", "\n", '4,"a\n', 'b",\n', optional=["kind"]))

    assert rows == [
        ("t.csv line 2", {"team": "vision", "gpus": "8", "kind": ""}),
        ("t.csv line 5", {"team": "a\nb", "gpus": "4", "kind": ""}),
    ]


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], "t.csv must be a CSV with the columns team,gpus"),
        (["team,cpus\n"], "t.csv must be a CSV with the columns team,gpus"),
        (["team,gpus,team\n"], "t.csv names the column team twice"),
        (["team,gpus\n", "a,1\n", "b,2,3\n"], "t.csv line 3: expected 2 values, found 3"),
        (["team,gpus\n", "a\n"], "t.csv line 2: expected 2 values, found 1"),
        (
            ["team,gpus\n", '"' + "a" * 200_000],
            "t.csv line 2: field larger than field limit (131072)",
        ),
        (["team,gpus\n", "a,1\n", "b,1\n", "c,1\n"], "t.csv has more than 2 rows"),
    ],
    ids=["empty", "other header", "column twice", "long row", "short row", "no CSV", "too many rows"],
)
def test_invalid_table_is_refused_with_file_and_line(lines, sentence):
    with pytest.raises(ValueError) as refused:
        list(table(*lines, max_rows=2))

    assert str(refused.value) == sentence
