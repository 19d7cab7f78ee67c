"""The account page in a real browser."""

import pytest
from playwright.sync_api import expect

from jobs.actions import tokens as token_actions
from jobs.models import clock
from tests import make

pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True)]

SIZES = [("wide", {"viewport": {"width": 1440, "height": 900}}), ("phone", {"viewport": {"width": 390, "height": 844}})]


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_a_token_is_made_shown_once_and_revoked(visit, name, size):
    scheme = "dark" if name == "phone" else "light"
    ada = visit("ada", color_scheme=scheme, **size)
    token_actions.create_token(user=make.user("ada"), name="nightly evaluation", scope="submit", author=make.author(),
                       networks=["10.20.0.0/16"], expires_at=clock.now())  # fmt: skip
    ada.open("/account/")
    assert ada.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")

    ada.page.fill("[name=name]", "bench")
    ada.page.click("button.primary")
    secret = ada.page.locator("pre.command").inner_text()
    ada.page.get_by_role("link", name="Back to account").click()

    expect(ada.page.locator("body")).not_to_contain_text(secret)
    ada.page.get_by_text("Revoke…").first.click()
    ada.page.get_by_role("button", name="Revoke acme_").first.click()
    expect(ada.page.locator(".messages")).to_contain_text("is revoked")
    assert ada.complaints == []
