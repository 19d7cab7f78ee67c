"""From hundreds of megabytes to a bundle: small, repeatable, and the cause is always in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failures.diagnosis import compress, filters
from failures.diagnosis.compress import MAX_BUNDLE_BYTES, LogCompressor
from failures.diagnosis.engine import diagnose_text
from failures.diagnosis.filters import FilterRule
from failures.diagnosis.following import LogFollower
from failures.diagnosis.reader import SignatureReader
from tests.failures.diagnosis.samples import SAMPLES, Sample

CALM = "".join(f"[rank{at % 8}]: iteration {at} / 500000 | lm loss: 2.0 | time 0.4\n" for at in range(5000))
ECC = "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error\n"


def bundle_of(text: str, rules: tuple[FilterRule, ...] = filters.SHIPPED_FILTERS) -> compress.LogBundle:
    compressor = LogCompressor(rules)
    compressor.feed(text.encode())
    return compressor.bundle()


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_bundle_gives_the_same_verdict_as_its_log(sample: Sample) -> None:
    bundle = bundle_of(CALM + sample.log + CALM[:300])

    assert diagnose_text(bundle.text).root_cause == diagnose_text(CALM + sample.log + CALM[:300]).root_cause


@pytest.mark.parametrize("rule", filters.SHIPPED_FILTERS, ids=lambda rule: rule.name)
def test_filter_rule_drops_its_own_example(rule: FilterRule) -> None:
    assert filters.filter_scanner((rule,)).hits(rule.example.encode())


def test_routine_lines_are_dropped_and_counted() -> None:
    bundle = bundle_of(CALM)

    assert bundle.lines == 5000
    assert dict(bundle.dropped)["metrics"] == 5000
    assert len(bundle.rows) <= 20


def test_last_lines_are_kept_even_if_routine() -> None:
    assert "iteration 4999" in bundle_of(CALM).text


def test_lines_of_one_shape_are_one_row_with_a_count_and_two_times() -> None:
    rows = [f"2025-03-01 04:00:{at:02d},000 copied {at} files to /scratch" for at in range(50)]
    bundle = bundle_of("\n".join(rows) + "\n" + ECC)
    row = bundle.rows[0]

    assert (row.number, row.last, row.count) == (1, 50, 50)
    assert (row.first_time, row.last_time) == ("2025-03-01 04:00:00,000", "2025-03-01 04:00:49,000")


def test_filter_rule_that_matches_everything_cannot_hide_a_cause() -> None:
    everything = FilterRule(name="all", pattern=r"^.", example="x", origin="person")

    assert "uncorrectable ECC" in bundle_of(CALM + ECC + CALM, (everything,)).text


def test_bundle_of_a_thousand_different_lines_contains_the_cause() -> None:
    noise = "".join(f"word{chr(97 + at % 26)}{'x' * (at % 97)} says {'y' * (at % 89)}\n" for at in range(20_000))
    bundle = bundle_of(noise + ECC + noise)

    assert len(bundle.text.encode()) <= MAX_BUNDLE_BYTES
    assert "uncorrectable ECC" in bundle.text


def test_number_of_templates_is_bounded() -> None:
    compressor = LogCompressor()
    for at in range(4000):
        compressor.feed(("".join(chr(97 + (at >> shift & 15)) for shift in (0, 4, 8)) + " spoke\n").encode())

    compressor.bundle()

    assert len(compressor.templates) <= compress.MAX_TEMPLATES
    assert compressor.overflow > 0


def test_frequent_line_is_proposed_as_a_filter() -> None:
    text = "".join(f"shard {at} of the token cache was mapped at 0x{at:x}\n" for at in range(600))
    compressor = LogCompressor()
    compressor.feed(text.encode())
    compressor.bundle()

    (rule,) = compressor.proposals()

    assert rule.origin == "frequency"
    assert dict(bundle_of(text, (rule,)).dropped) == {rule.name: 600}


def test_line_with_a_signature_is_never_proposed_as_a_filter() -> None:
    compressor = LogCompressor()
    compressor.feed((ECC * 600).encode())
    compressor.bundle()

    assert compressor.proposals() == ()


@given(st.lists(st.integers(0, 300), max_size=10))
def test_bundle_does_not_depend_on_the_chunks(sizes: list[int]) -> None:
    data = (CALM[:2000] + SAMPLES[0].log).encode()
    compressor, at = LogCompressor(), 0
    for size in sizes:
        compressor.feed(data[at : at + size])
        at += size
    compressor.feed(data[at:])

    assert compressor.bundle() == bundle_of(data.decode())


@given(st.binary(max_size=3000))
def test_any_bytes_give_a_bundle(data: bytes) -> None:
    compressor = LogCompressor()
    compressor.feed(data)

    assert len(compressor.bundle().text.encode()) <= MAX_BUNDLE_BYTES


def test_very_long_line_gives_a_small_bundle() -> None:
    compressor = LogCompressor()
    for _ in range(8):
        compressor.feed(b"z" * (1 << 20))

    assert len(compressor.bundle().text.encode()) <= MAX_BUNDLE_BYTES


def test_follower_reports_each_finding_once_and_immediately() -> None:
    follower = LogFollower()

    assert follower.feed(CALM.encode()) == ()
    assert [finding.label for finding in follower.feed(ECC.encode())] == ["ECCError"]
    assert follower.feed((ECC + CALM).encode()) == ()


def test_follower_waits_for_the_end_of_a_line() -> None:
    follower = LogFollower()

    assert follower.feed(ECC[:30].encode()) == ()
    assert [finding.line.rank for finding in follower.feed(ECC[30:].encode())] == [3]


def test_follower_result_equals_one_complete_reading() -> None:
    follower = LogFollower()
    for row in SAMPLES[0].log.splitlines(keepends=True):
        follower.feed(row.encode())

    whole = SignatureReader()
    whole.feed(SAMPLES[0].log.encode())

    assert follower.reader.build_reading() == whole.build_reading()
