"""Onboarding: the login page, the panel "Start here", and links from terms to the glossary."""

from __future__ import annotations

import re

import pytest
from django.template import Context, Template

from acmeweb.common.env import ROOT
from acmeweb.glossary import TERMS
from acmeweb.pages.start import START_ROLES
from jobs.models import TeamRole
from tests import make

TEMPLATES = ROOT / "templates"


@pytest.fixture
def ada():
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    make.cluster()
    return make.browser("ada")


@pytest.mark.django_db
def test_login_page_says_what_acme_is(client):
    assert "Acme schedules training and evaluation jobs" in client.get("/login/").content.decode()


@pytest.mark.django_db
def test_start_panel_stays_until_it_is_dismissed(ada):
    assert 'id="start"' in ada.get("/").content.decode()

    answer = ada.post("/start/dismiss/", follow=True)

    assert answer.redirect_chain == [("/", 302)]
    assert 'id="start"' not in answer.content.decode()
    assert ada.cookies["acme_start_dismissed"]["httponly"]
    assert "Program author" in ada.get("/glossary/").content.decode()


@pytest.mark.django_db
def test_panel_is_dismissed_only_by_a_post(ada):
    assert ada.get("/start/dismiss/").status_code == 405


@pytest.mark.django_db
def test_each_role_has_three_links_that_exist(ada):
    assert [len(role.links) for role in START_ROLES] == [3, 3, 3, 3]
    for role in START_ROLES:
        for link in role.links:
            assert ada.get(link.url).status_code == 200, link.url


@pytest.mark.django_db
def test_fragment_links_lead_to_elements_of_their_pages(ada):
    for link in (link for role in START_ROLES for link in role.links if link.suffix.startswith("#")):
        assert f'id="{link.suffix[1:]}"' in ada.get(link.url).content.decode(), link.url


def test_terms_lead_to_the_glossary():
    shown = Template('{% load glossary %}{% term "ETTR" %}').render(Context())

    assert 'href="/glossary/#ettr"' in shown
    assert 'title="Effective training time ratio:' in shown


def test_every_term_on_a_page_is_in_the_glossary():
    names = {term.name for term in TERMS}
    used = {
        name for path in TEMPLATES.rglob("*.html") for name in re.findall(r'{% term "([^"]+)" %}', path.read_text())
    }

    assert {"ETTR", "Goodput", "Lemon node", "Quota"} <= used <= names
    assert "Backfill" in Template('{% load glossary %}{% setting_term "backfilling" %}').render(Context())
    assert Template('{% load glossary %}{% setting_term "unknown" %}').render(Context()) == ""
