"""JSON patch and merge patch."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.simulation.kubernetes.api.errors import ApiError
from scheduling.simulation.kubernetes.api.patches import json_patch, merge_patch

OBJECT = {"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"list": [1, 2, 3], "deep": {"x": None}}}


@pytest.mark.parametrize(
    ("operations", "path", "value"),
    [
        ([{"op": "add", "path": "/metadata/labels/c", "value": "3"}], ("metadata", "labels", "c"), "3"),
        ([{"op": "replace", "path": "/metadata/labels/a", "value": "9"}], ("metadata", "labels", "a"), "9"),
        ([{"op": "remove", "path": "/metadata/labels/a"}], ("metadata", "labels"), {"b": "2"}),
        ([{"op": "add", "path": "/spec/list/1", "value": 9}], ("spec", "list"), [1, 9, 2, 3]),
        ([{"op": "add", "path": "/spec/list/-", "value": 9}], ("spec", "list"), [1, 2, 3, 9]),
        ([{"op": "remove", "path": "/spec/list/0"}], ("spec", "list"), [2, 3]),
        ([{"op": "add", "path": "/metadata/labels/x~1y~0z", "value": "1"}], ("metadata", "labels", "x/y~z"), "1"),
        ([{"op": "test", "path": "/spec/list/0", "value": 1}], ("spec", "list"), [1, 2, 3]),
    ],
)
def test_json_patch(operations, path, value):
    before = copy.deepcopy(OBJECT)

    patched = json_patch(OBJECT, operations)

    for name in path:
        patched = patched[name]
    assert patched == value
    assert before == OBJECT


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ({}, 400),
        ([{"op": "add"}], 400),
        ([{"op": "jump", "path": "/x"}], 400),
        ([{"op": "add", "path": "x", "value": 1}], 400),
        ([{"op": "replace", "path": "/spec/nothing", "value": 1}], 422),
        ([{"op": "remove", "path": "/spec/list/7"}], 422),
        ([{"op": "test", "path": "/spec/list/0", "value": 2}], 422),
        ([{"op": "replace", "path": "", "value": 3}], 400),
    ],
)
def test_json_patch_that_does_not_fit_is_refused(operations, code):
    with pytest.raises(ApiError) as refused:
        json_patch(OBJECT, operations)

    assert refused.value.code == code


@pytest.mark.parametrize(
    ("found", "patch", "patched"),
    [  # the examples of RFC 7396, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch(found, patch, patched):
    assert merge_patch(found, patch) == patched


JSON = st.recursive(
    st.integers() | st.text(max_size=3) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(found=st.dictionaries(st.text(max_size=2), JSON), patch=st.dictionaries(st.text(max_size=2), JSON))
def test_merge_patch_without_nulls_applied_twice_changes_nothing_more(found, patch):
    once = merge_patch(found, patch)

    assert merge_patch(once, patch) == once
