"""How often an open page fetches its fragments. The page's clock and its websocket are those of the test."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests import make
from tests.browser.chromium import LAYOUT_SHIFTS

pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True)]

BURST_S = 20
CATCH_UP_MS = 15_000  # until each fragment that has to wait was fetched
# The socket answers at once what the test says, and `fetched` lists the fragments that were requested
STUBS = """
  window.fetched = [];
  const send = window.fetch;
  window.fetch = async (url, options) => {
    const one = {target: options?.headers?.["HX-Target"]?.split("#")[1], status: 0};
    if (one.target) window.fetched.push(one);
    const response = await send(url, options);
    one.status = response.status;
    return response;
  };
  window.WebSocket = class extends EventTarget {
    constructor() {
      super();
      window.socket = this;
      setTimeout(() => this.dispatchEvent(new Event("open")));
    }
    send(text) {
      this.numbers = Object.fromEntries(JSON.parse(text).join.map((topic) => [topic, 1]));
      this.receive({joined: this.numbers});
    }
    receive(message) { this.dispatchEvent(new MessageEvent("message", {data: JSON.stringify(message)})); }
    change(topics) { for (const topic of topics) this.receive({topic, seq: this.numbers[topic] += 1}); }
  };
"""
HIDE = """hidden => {
  Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
}"""


class Viewer:
    """An open page whose topics change when the test says so, in virtual time."""

    def __init__(self, page):
        self.page = page
        page.add_init_script(STUBS)
        page.clock.install()

    def open(self, url):
        self.page.goto(url)
        self.page.wait_for_selector("#live[data-state=live]")
        self.wait(CATCH_UP_MS)

    def wait(self, milliseconds):
        """Let virtual time pass, then wait for the responses."""
        for _ in range(0, milliseconds, 200):
            self.page.clock.run_for(200)
            self.page.wait_for_function("window.fetched.every((one) => one.status)")

    def change(self, *topics):
        self.page.evaluate("topics => window.socket.change(topics)", topics)

    def take(self):
        """Return the fragments that were fetched since the last call, and the statuses of the responses."""
        taken = self.page.evaluate("window.fetched.splice(0)")
        return [one["target"] for one in taken], [one["status"] for one in taken]


@pytest.fixture
def viewer(visit):
    make.cluster()
    make.running(make.job(by="ada", name="train", gpus_per_node=8), on=["seren-001"])
    ada = visit("ada", bypass_csp=True)  # for the waits of `wait_for_function`
    found = Viewer(ada.page)
    found.open(ada.server.url + "/")
    found.take()
    return found


def test_a_burst_of_changes_costs_less_than_one_request_per_second(viewer):
    began = viewer.page.evaluate("performance.now()")
    for _ in range(BURST_S * 5):
        viewer.change("queue", "nodes", "failures")
        viewer.wait(200)

    seconds = (viewer.page.evaluate("performance.now()") - began) / 1000  # real time passes too
    fetched, _ = viewer.take()
    assert len(fetched) <= seconds
    # No fragment is left out, and none is fetched twice within four seconds
    assert {"exceptions", "key-figures", "queue"} <= set(fetched)
    assert max(fetched.count(one) for one in fetched) <= seconds / 4 + 1


def test_the_last_change_of_a_burst_is_shown(viewer):
    viewer.change("queue", "nodes", "failures")
    viewer.wait(200)
    make.job(by="ada", name="another-one", gpus_per_node=8)

    viewer.change("queue")
    viewer.wait(CATCH_UP_MS)

    expect(viewer.page.locator("#queue")).to_contain_text("another-one")


def test_an_unchanged_fragment_is_not_transferred_again(viewer):
    for _ in range(2):  # the first response has the tag
        viewer.take()
        viewer.change("queue")
        viewer.wait(CATCH_UP_MS)

    fetched, statuses = viewer.take()
    # The slow polls of other fragments may be their first
    assert {status for name, status in zip(fetched, statuses, strict=True) if name == "queue"} == {304}


def test_a_hidden_tab_fetches_nothing_and_reloads_when_it_is_shown(viewer):
    viewer.page.evaluate(HIDE, True)
    viewer.change("queue", "nodes", "failures")
    viewer.wait(CATCH_UP_MS)
    assert viewer.take() == ([], [])

    viewer.page.evaluate(HIDE, False)
    viewer.wait(CATCH_UP_MS)

    assert {"exceptions", "key-figures", "queue"} <= set(viewer.take()[0])


def test_rows_that_a_new_job_moves_slide_without_a_layout_shift(visit):
    make.cluster()
    make.jobs(*({"name": f"job-{number}"} for number in range(10)), by="ada", gpus_per_node=8)
    ada = visit("ada")
    ada.open_live("/jobs/")
    row = ada.page.locator("#jobs tbody tr").first

    make.jobs(*({"name": f"new-{number}"} for number in range(5)), by="ada", gpus_per_node=8)

    expect(row).to_contain_text("new-4")
    assert sum(size for size, _ in ada.page.evaluate(LAYOUT_SHIFTS)) < 0.02
