"""Relative times continue between two responses, and are written as the server writes them."""

import time
from datetime import timedelta

import pytest
from playwright.sync_api import expect

from jobs.models import Job, clock
from jobs.templatetags.acme import age
from tests import make

pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True)]

SECONDS = [0, 90, 3630, 3 * 3600 + 5 * 60 + 30, 86400 + 30, 86400 * 3 + 3600 * 4 + 30, 86400 * 12 + 3600 * 4]
ADD = """moments => moments.forEach((moment) => {
  const element = document.createElement("time");
  element.dataset.since = moment;
  element.className = "added";
  document.querySelector("main").append(element);
})"""


def test_relative_times_tick_without_a_response(visit):
    job = make.ended(make.job(by="ada", name="train", gpus_per_node=1)).job
    Job.objects.filter(pk=job.pk).update(ended_at=clock.now() - timedelta(seconds=5))
    ada = visit("ada")
    shown = ada.page.locator(f"#job-{job.public_id} .c-place time")
    ada.page.context.set_offline(True)
    before = shown.text_content()

    expect(shown).not_to_have_text(before)

    assert ada.page.evaluate("navigator.onLine") is False


def test_browser_and_server_write_the_same_durations(visit):
    ada = visit("ada")

    ada.page.evaluate(ADD, [int(time.time()) - seconds for seconds in SECONDS])

    first, *others = [ada.page.locator("time.added").nth(number) for number in range(len(SECONDS))]
    expect(first).to_contain_text("s")
    assert [other.text_content() for other in others] == [age(timedelta(seconds=seconds)) for seconds in SECONDS[1:]]


def test_outdated_relative_time_is_written_again(visit):
    job = make.ended(make.job(by="ada", name="train", gpus_per_node=1)).job
    Job.objects.filter(pk=job.pk).update(ended_at=clock.now() - timedelta(minutes=5, seconds=30))
    ada = visit("ada")
    shown = ada.page.locator(f"#job-{job.public_id} .c-place time")
    ada.page.evaluate(
        "document.querySelector('#queue').querySelectorAll('time').forEach((one) => { one.textContent = '' })"
    )

    expect(shown).to_have_text("5m ago")
