"""How often an open page fetches its fragments. The page's clock and its websocket are those of the test."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from tests import make
from tests.patience import until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

BURST_S = 20
HIDE = """hidden => {
  Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
}"""


class Viewer:
    """An open page whose topics change when the test says so, in virtual time."""

    def __init__(self, page):
        self.page, self.responses, self.socket, self.numbers = page, [], None, {}
        page.clock.install()
        page.route_web_socket("**/live/", self.connected)
        page.on("response", lambda one: self.responses.append(one) if "hx-request" in one.request.headers else None)

    def connected(self, socket):
        self.socket = socket
        socket.on_message(self.join)

    def join(self, message):
        self.numbers = dict.fromkeys(json.loads(message)["join"], 1)
        self.socket.send(json.dumps({"joined": self.numbers}))

    def change(self, *topics):
        for topic in topics:
            self.numbers[topic] += 1
            self.socket.send(json.dumps({"topic": topic, "seq": self.numbers[topic]}))

    def open(self, url):
        self.page.goto(url)
        self.page.wait_for_selector("#live[data-state=live]")
        self.page.clock.run_for(15_000)  # until the page has caught up with the topics
        self.page.wait_for_load_state("networkidle")

    def targets(self):
        return [one.request.headers["hx-target"].partition("#")[2] for one in self.responses]

    def fetches_after(self, act):
        """Return the fragments that the page fetches from now on, up to 15 virtual seconds after `act`."""
        self.responses.clear()
        act()
        self.page.clock.run_for(15_000)
        self.page.wait_for_load_state("networkidle")
        return self.targets()


@pytest.fixture
def viewer(visit):
    make.cluster()
    make.running(make.job(by="ada", name="train", gpus_per_node=8), on=["seren-001"])
    ada = visit("ada")
    found = Viewer(ada.page)
    found.open(ada.server.url + "/")
    return found


def test_a_burst_of_changes_costs_less_than_one_request_per_second(viewer):
    def burst():
        for _ in range(BURST_S * 5):
            viewer.change("queue", "nodes", "failures")
            viewer.page.clock.run_for(200)

    fetched = viewer.fetches_after(burst)

    assert len(fetched) < BURST_S + 15
    # No fragment is left out, and none twice within four seconds
    assert {"exceptions", "capacity", "queue"} <= set(fetched)
    assert max(fetched.count(one) for one in set(fetched)) <= (BURST_S + 15) / 4 + 1


def test_the_last_change_of_a_burst_is_shown(viewer):
    viewer.change("queue", "nodes", "failures")
    make.job(by="ada", name="another-one", gpus_per_node=8)

    viewer.change("queue")
    viewer.page.clock.run_for(15_000)

    expect(viewer.page.locator("#queue")).to_contain_text("another-one")


def test_an_unchanged_fragment_is_not_transferred_again(viewer):
    viewer.fetches_after(lambda: viewer.change("queue"))  # now the page knows the tags

    assert "queue" in viewer.fetches_after(lambda: viewer.change("queue"))
    assert {one.status for one in viewer.responses} == {304}


def test_a_hidden_tab_fetches_nothing_and_reloads_when_it_is_shown(viewer):
    viewer.page.evaluate(HIDE, True)
    assert viewer.fetches_after(lambda: viewer.change("queue", "nodes", "failures")) == []

    viewer.page.evaluate(HIDE, False)
    viewer.page.clock.run_for(15_000)

    until(lambda: {"exceptions", "capacity", "queue"} <= set(viewer.targets()), what="the page does not reload")
