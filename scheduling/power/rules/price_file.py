"""Prices and carbon intensities by the hour from a CSV file `time,price,co2_g`. Pure: the caller opens the file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from acmeweb.common.errors import InvalidInput
from jobs.traces.cells import parse_time
from jobs.traces.csv_table import CsvTable

COLUMNS = ("time", "price", "co2_g")
HOUR_S = 3600
MAX_HOURS = 1_000_000
PRICE_LIMITS = (-1_000.0, 1_000_000.0)  # a surplus of electricity has a negative price
CO2_LIMITS = (0.0, 10_000.0)
LAST_TIME_S = 253_402_300_799.0


class HourPrice(NamedTuple):
    """One hour. None: the constant of the cluster."""

    start: datetime
    kwh_price: float | None
    co2_g_per_kwh: float | None


def read_prices(lines: Iterable[str], source: str) -> list[HourPrice]:
    """Return the hours of a file, one each. `price` is that of a kWh, `co2_g` the grams of CO2 per kWh; either column
    may be missing. Raises `InvalidInput`."""
    table = CsvTable(lines, source, ["time"], optional=COLUMNS[1:], max_rows=MAX_HOURS, error=_invalid)
    if not set(COLUMNS[1:]) & set(table.header):
        raise InvalidInput(f"{source} has neither a column price nor a column co2_g.")
    found: dict[datetime, HourPrice] = {}
    for where, cells in table:
        try:
            hour = _hour(cells)
            if hour.start in found:
                raise ValueError(f"the hour {hour.start:%Y-%m-%d %H:%M} occurs twice")
        except ValueError as error:
            raise InvalidInput(f"{where}: {error}.") from None
        found[hour.start] = hour
    return sorted(found.values())


def _invalid(text: str) -> InvalidInput:
    return InvalidInput(f"{text}.")


def _hour(cells: Mapping[str, str]) -> HourPrice:
    price, co2 = _number("price", cells["price"], PRICE_LIMITS), _number("co2_g", cells["co2_g"], CO2_LIMITS)
    return HourPrice(_start(cells["time"][:40]), price, co2)


def _start(cell: str) -> datetime:
    try:
        at_s = parse_time(cell)
    except (ValueError, OverflowError):
        at_s = math.nan
    if not 0 <= at_s <= LAST_TIME_S:
        raise ValueError(f"time {cell!r} is neither a date and time nor seconds since 1970")
    if at_s % HOUR_S:
        raise ValueError(f"time {cell!r} is not the start of an hour")
    return datetime.fromtimestamp(at_s, UTC)


def _number(name: str, text: str, limits: tuple[float, float]) -> float | None:
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not limits[0] <= number <= limits[1]:
        raise ValueError(f"{name} {text[:40]!r} is not a number from {limits[0]:g} to {limits[1]:g}")
    return number
