"""Following collections: pages, watches that end in every way, expired versions, restored storage."""

from __future__ import annotations

from contextlib import closing, suppress

import pytest
import yaml

from jobs.core.lifecycle import NodeState, State
from scheduling.backends.base import AccountingUnavailable, ClusterUnreachable
from scheduling.backends.kubernetes.api_client import ApiClient
from scheduling.backends.kubernetes.backend import KubernetesBackend
from scheduling.backends.kubernetes.cache import CacheIndex, ObjectCache
from scheduling.backends.kubernetes.connection.access import parse_address
from scheduling.backends.kubernetes.following import RESTORED_AFTER_S
from scheduling.backends.kubernetes.groups import GroupCache
from scheduling.backends.opening import open_backend
from tests.patience import until
from tests.scheduling.backends.kubernetes.objects import ended_pod, node, pod, workload
from tests.scheduling.backends.kubernetes.scripted_api import serving, status, until_watched

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"


def config(server):
    return yaml.safe_dump(
        {
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c"}}],
            "clusters": [{"name": "c", "cluster": {"server": server}}],
        }
    )


@pytest.fixture
def api():
    with serving() as (api, server):
        api.server = server
        yield api


@pytest.fixture
def backend(api):
    with closing(open_backend("kubernetes:///k", read_file=lambda path: config(api.server), timeout_s=60)) as backend:
        yield backend


def names(backend):
    return sorted(job.name.rpartition("/")[2] for job in backend.jobs())


def lists_of(api, path):
    return [query for asked, query in api.requests if asked == path and "watch" not in query and query["limit"] != "1"]


def refusal(backend):
    try:
        backend.jobs()
    except ClusterUnreachable as error:
        return str(error)
    return ""


def until_names(backend, *expected):
    until(lambda: names(backend) == list(expected), what=f"the jobs are {expected}")


def test_list_is_read_in_pages_and_only_once(api, backend):
    api.page_size = 2
    api.objects[PODS] = [pod(f"p{i}") for i in range(5)]

    assert names(backend) == ["p0", "p1", "p2", "p3", "p4"]
    assert names(backend) == ["p0", "p1", "p2", "p3", "p4"]
    assert [query.get("continue") for query in lists_of(api, PODS)] == [None, "2", "4"]


def test_events_arrive_without_another_list(api, backend):
    api.objects[PODS] = [pod("a")]
    assert names(backend) == ["a"]
    until_watched(api, PODS)

    api.change(PODS, "ADDED", pod("b", on="n1"))
    until_names(backend, "a", "b")
    api.change(PODS, "DELETED", pod("a"))

    until(lambda: {job.name: job.state for job in backend.jobs()}["research/pod/a"] == State.CANCELLED)
    assert len(lists_of(api, PODS)) == 1


def test_quiet_cluster_gives_the_same_listing(api, backend):
    api.objects[PODS] = [pod("a")]

    assert backend.jobs() is backend.jobs()
    assert backend.nodes() is backend.nodes()


def test_expired_page_begins_the_list_again(api, backend):
    api.page_size = 1
    api.objects[PODS] = [pod("a"), pod("b")]
    first = {"metadata": {"resourceVersion": "1", "continue": "1"}, "items": [pod("gone")]}
    api.scripts[PODS] = [lambda query: first, lambda query: status(410, "the continue token is too old")]

    assert names(backend) == ["a", "b"]


def test_interrupted_list_goes_on_with_its_next_page(api, backend):
    api.page_size = 1
    api.objects[PODS] = [pod("a"), pod("b"), pod("c")]
    api.scripts[PODS] = [lambda query: api._page(api.objects[PODS], query), lambda query: status(500, "etcd")]
    with pytest.raises(ClusterUnreachable, match="HTTP 500: etcd"):
        backend.jobs()

    assert names(backend) == ["a", "b", "c"]
    assert [query.get("continue") for query in lists_of(api, PODS)] == [None, "1", "1", "2"]


@pytest.mark.parametrize(
    "rest",
    [b"", b'{"type": "ADDED", "object": {"metadata": {"name": "ha', b"{"],
    ids=["ended by the server", "cut in the middle of an object", "cut after one byte"],
)
def test_watch_that_ends_goes_on_where_it_was(api, backend, rest):
    api.objects[PODS] = [pod("a")]
    assert names(backend) == ["a"]
    until_watched(api, PODS)

    api.send_raw(PODS, rest)
    api.change(PODS, "ADDED", pod("b"))

    until_names(backend, "a", "b")
    assert len(lists_of(api, PODS)) == 1


@pytest.mark.parametrize(
    "line",
    [
        b"not JSON\n",
        b"[1]\n",
        b'{"type": "PARTY"}\n',
        b'{"type": "ERROR", "object": {"code": 500, "message": "x"}}\n',
        b"[" * 100_000 + b"\n",
    ],
    ids=["text", "list", "unknown type", "error", "nested"],
)
def test_watch_that_says_nonsense_lists_again(api, backend, line):
    api.objects[PODS] = [pod("a")]
    assert names(backend) == ["a"]
    until_watched(api, PODS)

    api.send_raw(PODS, line)

    until(lambda: names(backend) == ["a"] and len(lists_of(api, PODS)) == 2, what="listed again")


def test_expired_version_lists_again_and_notices_what_vanished(api, backend):
    api.objects[PODS] = [pod("a"), pod("b")]
    assert names(backend) == ["a", "b"]
    until_watched(api, PODS)

    api.version = api.expire_before = 2_000_000
    api.objects[PODS] = [pod("b"), pod("c")]
    api.send_raw(PODS, b"")

    until(lambda: "c" in names(backend), what="listed again")
    states = {job.name: job.state for job in backend.jobs()}
    assert states["research/pod/a"] == State.CANCELLED
    assert states["research/pod/b"] == State.PENDING


INTERRUPTIBLE = {
    "reading an event": (ObjectCache, "apply"),
    "storing": (ObjectCache, "_store"),
    "removing": (ObjectCache, "_remove"),
    "forming groups": (GroupCache, "_regroup"),
    "indexing": (CacheIndex, "_remove"),
}


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("where", INTERRUPTIBLE)
def test_look_that_is_interrupted_loses_no_change(api, backend, monkeypatch, where, done):
    """By Celery's time limit, for example, which raises an exception at any instruction."""
    api.objects[PODS], api.objects[NODES] = [pod("a", on="n1"), pod("b", on="n1")], [node("n1")]
    assert names(backend) == ["a", "b"] and node_state(backend) == NodeState.ALLOCATED
    until_watched(api, PODS)
    cut_off = interrupt_once(monkeypatch, *INTERRUPTIBLE[where], done=done)

    api.change(PODS, "MODIFIED", ended_pod("a", on="n1", exit_code=3))
    api.change(PODS, "DELETED", pod("b", on="n1"))
    until(lambda: look(backend) and bool(cut_off), what="the interruption")

    wanted = {"research/pod/a": State.FAILED, "research/pod/b": State.CANCELLED}
    until(lambda: {job.name: job.state for job in backend.jobs()} == wanted, what="the changes")
    assert node_state(backend) == NodeState.IDLE


def node_state(backend):
    (only,) = backend.nodes()
    return only.state


def look(backend) -> bool:
    with suppress(TimeoutError):
        backend.nodes(), backend.jobs()
    return True


def interrupt_once(monkeypatch, owner, name, *, done):
    """Raise TimeoutError before or after the next call of a method. The list that is returned is filled then."""
    original, cut_off = getattr(owner, name), []

    def method(self, *arguments):
        if not cut_off and not done:
            cut_off.append(name)
            raise TimeoutError
        result = original(self, *arguments)
        if not cut_off:
            cut_off.append(name)
            raise TimeoutError
        return result

    monkeypatch.setattr(owner, name, method)
    return cut_off


def test_restored_storage_lists_again(api):
    seconds = [0.0]
    client = ApiClient(parse_address("kubernetes:///k"), lambda path: config(api.server), 60)
    backend = KubernetesBackend(client, monotonic=lambda: seconds[0])
    api.version = 3_000_000
    api.objects[PODS] = [pod("a"), pod("b")]
    with closing(backend):
        assert names(backend) == ["a", "b"]

        api.version, api.objects[PODS] = 2_000_000, [pod("b")]
        with pytest.raises(ClusterUnreachable, match="its state is older than in an earlier response"):
            backend.jobs()
        seconds[0] = RESTORED_AFTER_S

        assert names(backend) == ["a", "b"]
        assert len(lists_of(api, PODS)) == 2
        assert {job.name: job.state for job in backend.jobs()}["research/pod/a"] == State.CANCELLED


def test_older_response_ends_no_job(api, backend):
    """A lagging server repeats what it said before a pod existed."""
    api.objects[PODS] = [pod("a")]
    assert names(backend) == ["a"]
    version, api.version = api.version, 1

    with pytest.raises(ClusterUnreachable, match="its state is older than in an earlier response"):
        backend.jobs()
    api.version = version

    assert {job.state for job in backend.jobs()} == {State.PENDING}
    assert len(lists_of(api, PODS)) == 1


def test_older_list_of_one_collection_is_refused(api, backend):
    api.version = 3_000_000
    api.objects[PODS] = [pod("a")]
    assert names(backend) == ["a"]
    until_watched(api, PODS)
    api.scripts[PODS] = [lambda query: {"metadata": {"resourceVersion": "2000000"}, "items": []}]

    api.send_raw(PODS, b"not JSON\n")

    until(lambda: "the list /api/v1/pods is older" in refusal(backend), what="the older list is refused")
    assert {job.name: job.state for job in backend.jobs()} == {"research/pod/a": State.PENDING}


def test_dead_server_is_unreachable_and_the_state_is_kept():
    with serving() as (api, server):
        backend = open_backend("kubernetes:///k", read_file=lambda path: config(server), timeout_s=60)
        api.objects[PODS] = [pod("a")]
        assert names(backend) == ["a"]

    with closing(backend), pytest.raises(ClusterUnreachable):
        backend.jobs()


def test_kinds_are_discovered_and_forbidden_ones_skipped(api, backend):
    api.groups = {"batch/v1": {"kinds": ["Job", "CronJob"]}, "kubeflow.org/v1": {"kinds": ["PyTorchJob"]}}
    job = workload("Job", "train")
    api.objects["/apis/batch/v1/jobs"] = [job, workload("Job", "waiting")]
    api.objects[PODS] = [
        pod("p", on="n1", controller=job),
        pod("q", on="n1", controller=workload("PyTorchJob", "llama")),
    ]
    api.scripts["/apis/kubeflow.org/v1/pytorchjobs"] = [lambda query: status(403, "forbidden")]

    assert names(backend) == ["llama", "train", "waiting"]


def test_refusal_names_the_server_and_the_reason(api, backend):
    del api.objects[NODES]

    with pytest.raises(ClusterUnreachable, match=r"http://127.0.0.1:[0-9]+: HTTP 404: the server could not find"):
        backend.nodes()


@pytest.mark.parametrize(
    "answer", [b"<html>", b"[]", b"[" * 100_000, b'{"items": []}'], ids=["HTML", "list", "nested", "no version"]
)
def test_answer_of_another_program_is_no_answer(api, backend, answer):
    api.scripts[PODS] = [lambda query: answer]

    with pytest.raises(ClusterUnreachable):
        backend.jobs()


def test_malformed_node_is_set_aside(api, backend):
    broken = node("x" * 80)
    api.objects[NODES] = [node("n1"), broken]

    listing = backend.nodes()

    assert [seen.name for seen in listing] == ["n1"]
    assert listing.hides_node("x" * 80) and not listing.hides_node("n2")


def test_job_is_found_by_its_key(api, backend):
    api.objects[PODS] = [pod("a", labels={"acme/attempt": "k1"}), pod("b")]

    assert backend.find("k1").name == "research/pod/a"
    assert backend.find("k2") is None


def test_cluster_has_no_accounting(backend):
    with pytest.raises(AccountingUnavailable):
        backend.accounting_jobs("uid")


def test_config_maps_that_may_not_be_listed_do_not_hide_the_jobs_of_others(api, backend):
    api.objects[PODS] = [pod("a", on="n1")]

    assert [job.name for job in backend.jobs()] == ["research/pod/a"]
    assert any(path.endswith("/configmaps") for path, _ in api.requests)
