"""Groups of owners, kept current when parts of them appear, change and vanish."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduling.backends.kubernetes.groups import GroupCache
from scheduling.backends.kubernetes.ownership import OwnerMapping
from scheduling.backends.kubernetes.pods import OwnerReference, read_pod
from scheduling.backends.kubernetes.workloads import read_workload
from tests.scheduling.backends.kubernetes.objects import pod, workload

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


def grouped(pods, workloads):
    """The groups formed at once."""
    cache = GroupCache()
    cache.update(pods, workloads, None)
    return cache.listed


def changed_uids(before, now):
    return {uid for uid in before.keys() | now.keys() if before.get(uid) is not now.get(uid)}


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
        new_pods, new_workloads = kept(pods, new_pods), kept(workloads, new_workloads)
        changed, count = changed_uids(pods, new_pods) | changed_uids(workloads, new_workloads), cache.changes.count
        pods, workloads, before = new_pods, new_workloads, dict(cache.listed)
        cache.update(pods, workloads, changed)

        assert contents(cache.listed) == contents(grouped(pods, workloads))
        assert changed_uids(before, cache.listed) <= cache.changes.since(count)


def test_group_without_changes_stays_the_same_object():
    top, other = owned(WORKLOAD, "w0", ""), owned(WORKLOAD, "w1", "")
    first, second = owned(POD, "p0", "w0"), owned(POD, "p1", "w1")
    cache = GroupCache()
    cache.update({"p0": first, "p1": second}, {"w0": top, "w1": other}, None)
    before = dict(cache.listed)

    cache.update({"p0": first, "p1": replace(second, gone_at=None)}, {"w0": top, "w1": other}, {"p1"})

    after = cache.listed
    assert after["w0"] is before["w0"]
    assert after["w1"] is not before["w1"]
    assert before["w1"].pods == [second]


def test_group_is_named_by_its_owner_and_not_by_what_others_say_about_it():
    owner, pod = owned(WORKLOAD, "w0", ""), owned(POD, "p0", "w0", kind="RayCluster")

    (group,) = grouped({"p0": pod}, {"w0": owner}).values()

    assert group.top == OwnerReference(uid="w0", kind="Job", name="w0")
