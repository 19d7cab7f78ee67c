"""JSON patch, merge patch and strategic merge patch."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.simulation.kubernetes.api.errors import ApiError
from scheduling.simulation.kubernetes.api.patches import json_patch, merge_patch
from scheduling.simulation.kubernetes.api.strategic_merge import strategic_merge

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
        ([{"op": "move", "from": "/spec/list/0", "path": "/spec/list/-"}], ("spec", "list"), [2, 3, 1]),
        ([{"op": "copy", "from": "/spec/list/0", "path": "/spec/n"}], ("spec", "n"), 1),
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


POD = {
    "metadata": {"finalizers": ["a"], "labels": {"x": "1"}},
    "spec": {
        "containers": [
            {"name": "main", "image": "one", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
            {"name": "sidecar", "image": "two"},
        ],
        "tolerations": [{"key": "a"}],
    },
}


def test_containers_and_variables_are_merged_by_name():
    patch = {"spec": {"containers": [{"name": "main", "env": [{"name": "B", "value": "9"}, {"name": "C"}]}]}}

    containers = strategic_merge(POD, patch)["spec"]["containers"]

    assert [one["image"] for one in containers] == ["one", "two"]
    assert containers[0]["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "9"}, {"name": "C"}]


def test_list_without_merge_key_is_replaced():
    assert strategic_merge(POD, {"spec": {"tolerations": [{"key": "b"}]}})["spec"]["tolerations"] == [{"key": "b"}]


@pytest.mark.parametrize(
    ("patch", "names"),
    [
        ({"containers": [{"$patch": "delete", "name": "main"}]}, ["sidecar"]),
        ({"containers": [{"$patch": "replace"}, {"name": "other"}]}, ["other"]),
        ({"$setElementOrder/containers": [{"name": "sidecar"}, {"name": "main"}]}, ["sidecar", "main"]),
        (
            {
                "$setElementOrder/containers": [{"name": "new"}, {"name": "main"}, {"name": "sidecar"}],
                "containers": [{"name": "new"}],
            },
            ["new", "main", "sidecar"],
        ),
    ],
)
def test_directives_for_lists_of_objects(patch, names):
    assert [one["name"] for one in strategic_merge(POD, {"spec": patch})["spec"]["containers"]] == names


@pytest.mark.parametrize(
    ("patch", "finalizers"),
    [
        ({"finalizers": ["b"]}, ["a", "b"]),
        ({"$deleteFromPrimitiveList/finalizers": ["a"]}, []),
        ({"$setElementOrder/finalizers": ["b", "a"], "finalizers": ["b"]}, ["b", "a"]),
    ],
)
def test_finalizers_are_a_set(patch, finalizers):
    assert strategic_merge(POD, {"metadata": patch})["metadata"]["finalizers"] == finalizers


def test_null_removes_a_field_and_retain_keys_removes_the_others():
    assert "labels" not in strategic_merge(POD, {"metadata": {"labels": None}})["metadata"]
    patch = {"metadata": {"$retainKeys": ["labels"], "labels": {"y": "2"}}}
    assert strategic_merge(POD, patch)["metadata"] == {"labels": {"x": "1", "y": "2"}}


def test_element_without_its_merge_key_is_refused():
    with pytest.raises(ApiError, match="does not contain declared merge key: name"):
        strategic_merge(POD, {"spec": {"containers": [{"image": "x"}]}})
