"""Prices and carbon intensities by the hour from a CSV file `time,price,co2_g`. Pure: the caller opens the file."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from jobs.traces.cells import parse_time

COLUMNS = ("time", "price", "co2_g")
HOUR_S = 3600
MAX_HOURS = 1_000_000
PRICE_LIMITS = (-1_000.0, 1_000_000.0)  # a surplus of electricity has a negative price
CO2_LIMITS = (0.0, 10_000.0)
LAST_TIME_S = 253_402_300_799.0


class InvalidPrices(ValueError):
    """A sentence with the file, and the line if there is one."""


class HourPrice(NamedTuple):
    """One hour. None: the constant of the cluster."""

    start: datetime
    kwh_price: float | None
    co2_g_per_kwh: float | None


def read_prices(lines: Iterable[str], source: str) -> list[HourPrice]:
    """Return the hours of a file, one each. `price` is that of a kWh, `co2_g` the grams of CO2 per kWh; either column
    may be missing. Raises `InvalidPrices`."""
    reader = csv.reader(lines)
    found: dict[datetime, HourPrice] = {}
    header = [cell.strip().lstrip("\ufeff").lower() for cell in next(_lines(reader, source), [])]
    if "time" not in header or not {"price", "co2_g"} & set(header):
        raise InvalidPrices(f"{source}, line 1: the header needs time, and price or co2_g.")
    for cells in _lines(reader, source):
        if not cells:
            continue
        try:
            hour = _hour([cells[header.index(name)] if name in header else "" for name in COLUMNS])
            if hour.start in found:
                raise ValueError(f"the hour {hour.start:%Y-%m-%d %H:%M} occurs twice")
        except IndexError:
            raise InvalidPrices(f"{source}, line {reader.line_num}: it has too few columns.") from None
        except ValueError as error:
            raise InvalidPrices(f"{source}, line {reader.line_num}: {error}.") from None
        found[hour.start] = hour
    return sorted(found.values())


def _lines(reader: Iterator[list[str]], source: str) -> Iterator[list[str]]:
    for number in range(1, MAX_HOURS + 2):
        try:
            cells = next(reader)
        except StopIteration:
            return
        except (csv.Error, UnicodeDecodeError) as error:
            raise InvalidPrices(f"{source}, line {number}: not readable as CSV in UTF-8: {error}.") from None
        yield cells
    raise InvalidPrices(f"{source}: more than {MAX_HOURS:,} hours.")


def _hour(cells: Sequence[str]) -> HourPrice:
    price, co2 = _number("price", cells[1], PRICE_LIMITS), _number("co2_g", cells[2], CO2_LIMITS)
    return HourPrice(_start(cells[0].strip()[:40]), price, co2)


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


def _number(name: str, cell: str, limits: tuple[float, float]) -> float | None:
    if not (text := cell.strip()):
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not limits[0] <= number <= limits[1]:
        raise ValueError(f"{name} {text[:40]!r} is not a number from {limits[0]:g} to {limits[1]:g}")
    return number
