"""The tabs of the job page: one URL and one set of panels each."""

from __future__ import annotations

import pytest

from jobs.models import TeamRole
from tests import make

pytestmark = pytest.mark.django_db
PANELS = {"": "asked-title", "metrics": "progress-title", "log": "log-title", "events": "events-title"}


@pytest.fixture
def ada():
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    return make.browser("ada")


@pytest.mark.parametrize("tab", PANELS)
def test_a_tab_shows_only_its_own_panels(ada, tab):
    job = make.job(by="ada", gpus_per_node=8)

    page = ada.get(f"/jobs/{job}/log/" if tab == "log" else f"/jobs/{job}/?tab={tab}").content.decode()

    assert [name for name in PANELS.values() if f'id="{name}"' in page] == [PANELS[tab]]
    assert f'href="/jobs/{job}/?tab=events"' in page and f'href="/jobs/{job}/log/"' in page


def test_a_refresh_of_the_headline_keeps_the_tab(ada):
    job = make.job(by="ada", gpus_per_node=8)

    page = ada.get(f"/jobs/{job}/log/").content.decode()

    assert f'<div id="job" data-topics="job:{job}" hx-get="/jobs/{job}/log/"' in page


def test_an_unknown_tab_is_refused_and_the_overview_shown(ada):
    answer = ada.get(f"/jobs/{make.job(by='ada')}/?tab=nonsense")

    assert answer.status_code == 400
    assert 'id="asked-title"' in answer.content.decode()
