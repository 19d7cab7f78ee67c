"""Groups of owners, kept current when parts of them appear, change and vanish."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.backends.kubernetes.groups import GroupCache
from scheduling.backends.kubernetes.ownership import OwnerMapping
from scheduling.backends.kubernetes.pods import OwnerReference, read_pod
from scheduling.backends.kubernetes.workloads import read_workload
from tests.backends.kubernetes.objects import pod, workload

POD = read_pod(pod(), OwnerMapping())
WORKLOAD = read_workload(workload(), "Job", "/apis/batch/v1/jobs", OwnerMapping())
OWNERS = tuple(f"w{number}" for number in range(4))  # each may be controlled by any one, also in circles
PODS = tuple(f"p{number}" for number in range(3))


def owned(part, uid, by, kind="Job"):
    controller = OwnerReference(uid=by, kind=kind, name=f"{kind}-{by}") if by else None
    return replace(part, uid=uid, name=uid, controller=controller)


@st.composite
def states(draw):
    """Some pods and workloads, each perhaps controlled by a workload that is known or not, under a kind that may be
    wrong."""

    def drawn(part, uids):
        controllers, kinds = st.sampled_from(("", *OWNERS)), st.sampled_from(("Job", "RayCluster"))
        return {uid: owned(part, uid, draw(controllers), draw(kinds)) for uid in uids if draw(st.booleans())}

    return drawn(POD, PODS), drawn(WORKLOAD, OWNERS)


def kept(before, now):
    """The new state, in which equal objects are the same as before, as in a cache."""
    return {uid: before[uid] if before.get(uid) == part else part for uid, part in now.items()}


def contents(groups):
    return {
        uid: (group.top, [part.uid for part in group.workloads], [one.uid for one in group.pods])
        for uid, group in groups.items()
    }


@given(st.lists(states(), min_size=2, max_size=5))
def test_groups_after_changes_equal_those_formed_at_once(history):
    cache, pods, workloads = GroupCache(), {}, {}

    for new_pods, new_workloads in history:
        pods, workloads = kept(pods, new_pods), kept(workloads, new_workloads)
        groups = contents(cache.update(pods, workloads))

        assert groups == contents(GroupCache().update(pods, workloads))


def test_group_without_changes_stays_the_same_object():
    top, other = owned(WORKLOAD, "w0", ""), owned(WORKLOAD, "w1", "")
    first, second = owned(POD, "p0", "w0"), owned(POD, "p1", "w1")
    cache = GroupCache()
    before = dict(cache.update({"p0": first, "p1": second}, {"w0": top, "w1": other}))

    after = cache.update({"p0": first, "p1": replace(second, gone_at=None)}, {"w0": top, "w1": other})

    assert after["w0"] is before["w0"]
    assert after["w1"] is not before["w1"]
    assert before["w1"].pods == [second]


def test_group_is_named_by_its_owner_and_not_by_what_others_say_about_it():
    owner, pod = owned(WORKLOAD, "w0", ""), owned(POD, "p0", "w0", kind="RayCluster")

    (group,) = GroupCache().update({"p0": pod}, {"w0": owner}).values()

    assert group.top == OwnerReference(uid="w0", kind="Job", name="w0")


def test_update_that_is_interrupted_loses_nothing():
    cache, first, second = GroupCache(), owned(POD, "p0", ""), owned(POD, "p1", "")
    cache.update({"p0": first}, {})

    class Interrupting(dict):
        def get(self, key, default=None):
            raise TimeoutError

    with pytest.raises(TimeoutError):
        cache.update({"p0": replace(first, gone_at=None), "p1": second}, Interrupting())

    assert set(cache.update({"p0": first, "p1": second}, {})) == {"p0", "p1"}
