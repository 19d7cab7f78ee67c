"""Node lists in Slurm notation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmeweb.common.errors import InvalidInput
from jobs.core.hostlist import compress, expand

names = st.sets(st.from_regex(r"[a-z]{1,3}-?[0-9]{0,4}", fullmatch=True), max_size=40)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("gpu[001-003,020]", ["gpu001", "gpu002", "gpu003", "gpu020"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("", []),
    ],
)
def test_list_expands_in_the_order_written(text, expected):
    assert expand(text) == expected


@pytest.mark.parametrize(
    ("given_names", "text"),
    [
        (["gpu001", "gpu002", "gpu003", "gpu020"], "gpu[001-003,020]"),
        (["n9", "n10", "n11"], "n[9-11]"),
        (["gpu09", "gpu10"], "gpu[09-10]"),
        (["b", "a"], "a,b"),
        (["n1"], "n1"),
        (["n1", "n01"], "n01,n1"),
    ],
)
def test_compressed_list_is_as_short_as_that_of_slurm(given_names, text):
    assert sorted(compress(given_names).split(",")) == sorted(text.split(","))


@given(names)
def test_compressed_list_expands_to_the_same_names(some):
    assert set(expand(compress(some))) == some


@pytest.mark.parametrize("text", ["a[1", "a1]", "a[x]", "a[1-99999999]", "a[[1]]", "a[-]", "a" + 40 * "[1-9]"])
def test_invalid_list_is_rejected(text):
    with pytest.raises(InvalidInput):
        expand(text)


REFUSED_BEFORE_WORK = {
    "a range that counts down": "a[2-1]",
    "no names out of a huge product": "a[1-100000][1-100000][1-100000][2-1]",
    "a number of thousands of digits": f"a[{'9' * 5000}]",
    "thousands of brackets": "a" + "[1]" * 400_000,
    "long names by the thousand": "a" * 900_000 + "[1-50000]",
}


@pytest.mark.parametrize("name", REFUSED_BEFORE_WORK)
def test_oversized_list_is_rejected_before_it_is_expanded(name):
    with pytest.raises(InvalidInput):
        expand(REFUSED_BEFORE_WORK[name])


def test_brackets_are_allowed_anywhere_in_a_name():
    assert expand("[1-2]a,b[3]c[4-5]d, e") == ["1a", "2a", "b3c4d", "b3c5d", "e"]


def test_name_with_too_many_trailing_digits_is_not_merged():
    long = "a" + "9" * 5000

    assert compress([long, "a1"]) == f"{long},a1"
