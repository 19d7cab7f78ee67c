"""A node's health from what it reports, and from what became of those who ran on it. Pure.

What a code means is in the diagnosis' catalogue (NVIDIA's own table); an unknown code is a note and never a reason to
act. Telemetry that stops is a warning about the telemetry: only the cluster may say that a node is down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from failures.detect.findings import Finding, Severity, Symptom
from failures.diagnosis import catalogue

HOT_C = 87.0
TOO_HOT_C = 93.0
IMPOSSIBLE_C = 120.0  # GPUs switch themselves off well below; broken sensors report 127 or 255
SILENT_S = 90.0  # six samples of fifteen seconds
MANY_CORRECTED = 1_000  # in some minutes; a few are what ECC is for
MANY_NVLINK = 100  # links repair single errors by themselves
THROTTLED = 0.2  # part of the samples
LEMON = 4.0
FORGOTTEN_DAYS = 30.0


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A node over the last minutes. Counters are what was added in that time; None: not measured."""

    node: str
    heard_at: float | None
    xids: Sequence[int] = ()
    ecc_uncorrected: int = 0
    ecc_corrected: int = 0
    rows_pending: int = 0  # remapped at the next reset
    remap_failed: bool = False
    nvlink_errors: int = 0
    nics_down: Sequence[str] = ()
    hottest_c: float | None = None
    throttled: float | None = None  # part of the samples


@dataclass(frozen=True, kw_only=True)
class Past:
    """One entry of a node's history."""

    at: float
    what: str


# What people's lists of bad nodes are made of: repeated failures weigh, whatever their name
WEIGHTS = {
    "job_failed_here_alone": 1.0,
    "gang_failed_here": 0.5,
    "xid": 1.0,
    "failed_test": 2.0,
    "excluded": 1.0,
    "down": 1.0,
    "ticket": 1.5,
}


def health(reading: Reading, now: float) -> list[Finding]:
    """The worst first."""
    order = list(Severity)
    found = (_finding(reading, now, *said) for said in _said(reading, now))
    return sorted(found, key=lambda one: -order.index(one.severity))


def reports_fault(reading: Reading) -> bool:
    """Whether it reports a fault that ends the programs on it. Heat only slows them down: a node that is too hot did
    not cause an end, and a temperature is what sensors most often report wrongly."""
    return any(severity is Severity.BAD for severity, _ in _faults(reading))


def _said(one: Reading, now: float) -> Iterator[tuple[Severity, str]]:
    if one.heard_at is None or now - one.heard_at > SILENT_S:
        ago = "ever" if one.heard_at is None else f"for {now - one.heard_at:.0f} s"
        yield Severity.WARN, f"No telemetry {ago}."
    yield from _faults(one)
    yield from _heat(one)


def _faults(one: Reading) -> Iterator[tuple[Severity, str]]:
    for code in dict.fromkeys(one.xids):
        if code:
            yield _xid(code)
    if one.remap_failed:
        yield Severity.BAD, "A row of GPU memory could not be replaced."
    if one.ecc_uncorrected:
        yield Severity.BAD, f"Uncorrectable memory errors: {one.ecc_uncorrected}."
    if one.ecc_corrected >= MANY_CORRECTED:
        yield Severity.WARN, f"Memory errors that were corrected: {one.ecc_corrected}."
    if one.rows_pending:
        yield Severity.WARN, f"Rows of GPU memory to be replaced at the next reset: {one.rows_pending}."
    if one.nvlink_errors >= MANY_NVLINK:
        yield Severity.WARN, f"NVLink errors: {one.nvlink_errors}."
    if one.nics_down:
        yield Severity.BAD, f"Network ports down: {', '.join(one.nics_down)}."


def _heat(one: Reading) -> Iterator[tuple[Severity, str]]:
    if one.hottest_c is not None and one.hottest_c >= IMPOSSIBLE_C:
        yield Severity.WARN, f"A temperature sensor is broken: it reports {one.hottest_c:.0f} °C."
    elif one.hottest_c is not None and one.hottest_c >= HOT_C:
        yield Severity.BAD if one.hottest_c >= TOO_HOT_C else Severity.WARN, f"A GPU is at {one.hottest_c:.0f} °C."
    if one.throttled is not None and one.throttled >= THROTTLED:
        yield Severity.WARN, f"GPUs are slowed down by heat or power {one.throttled:.0%} of the time."


def _xid(code: int) -> tuple[Severity, str]:
    known = catalogue.xids().get(code)
    if known is None:
        return Severity.NOTE, f"Xid {code}, which is in no catalogue."
    severity = Severity.BAD if known.auto_cordon == "yes" else Severity.NOTE
    return severity, f"Xid {code}: {known.meaning}."


def _finding(reading: Reading, now: float, severity: Severity, why: str) -> Finding:
    return Finding(symptom=Symptom.NODE, since=now, subject=reading.node, severity=severity, why=why)


def lemon(past: Sequence[Past], now: float) -> float:
    """How much of a lemon: weighted history that fades over thirty days. What is not in the table weighs nothing."""
    days = [((now - one.at) / 86400, WEIGHTS.get(one.what, 0.0)) for one in past]
    return sum(weight * max(0.0, 1 - ago / FORGOTTEN_DAYS) for ago, weight in days if ago >= 0)


def is_lemon(past: Sequence[Past], now: float) -> bool:
    return lemon(past, now) >= LEMON
