"""`manage.py import_energy_prices`: hours of a file replace stored ones, and bad files are refused in one sentence."""

from __future__ import annotations

from datetime import UTC, datetime
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from acmeweb.common.errors import InvalidInput
from jobs.models import EnergyPrice
from scheduling.power.rules.price_file import read_prices
from tests import make


def run(path, cluster="seren"):
    out = StringIO()
    call_command("import_energy_prices", str(path), cluster=cluster, stdout=out)
    return out.getvalue()


def test_prices_are_stored_by_hour_and_replaced_by_the_next_file(db, tmp_path):
    make.cluster()
    path = tmp_path / "prices.csv"
    path.write_text("time,price,co2_g\n2026-11-01 00:00:00,0.21,380\n2026-11-01T02:00+01:00,-0.01,\n")
    run(path)
    path.write_text("co2_g,time\n90,2026-11-01 01:00:00\n")

    assert run(path) == "Stored 1 hours for seren.\n"

    rows = EnergyPrice.objects.order_by("start").values_list("start", "kwh_price", "co2_g_per_kwh")
    assert list(rows) == [
        (datetime(2026, 11, 1, 0, tzinfo=UTC), 0.21, 380.0),
        (datetime(2026, 11, 1, 1, tzinfo=UTC), None, 90.0),
    ]


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], "p.csv must be a CSV with the column time."),
        (["time,cost"], "p.csv has neither a column price nor a column co2_g."),
        (["time,price", "0,1,2"], "p.csv line 2: expected 2 values, found 3."),
        (["time,price", "0,1", "0,2"], "p.csv line 3: the hour 1970-01-01 00:00 occurs twice."),
        (["time,price", "1800,1"], "p.csv line 2: time '1800' is not the start of an hour."),
        (["time,price", "soon,1"], "p.csv line 2: time 'soon' is neither a date and time nor seconds since 1970."),
        (["time,price", "0,nan"], "p.csv line 2: price 'nan' is not a number from -1000 to 1e+06."),
        (["time,co2_g", "0,-1"], "p.csv line 2: co2_g '-1' is not a number from 0 to 10000."),
        (["time,price", "0,=1+1"], "p.csv line 2: price '=1+1' is not a number from -1000 to 1e+06."),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_file_is_refused_with_file_and_line(lines, sentence):
    with pytest.raises(InvalidInput) as refused:
        read_prices(lines, "p.csv")

    assert str(refused.value) == sentence


def test_unknown_cluster_and_missing_file_are_refused(db, tmp_path):
    make.cluster()

    with pytest.raises(CommandError, match=r"^cluster: kalos is not a cluster"):
        run(tmp_path / "prices.csv", cluster="kalos")
    with pytest.raises(CommandError, match=r"^prices: "):
        run(tmp_path / "prices.csv")
