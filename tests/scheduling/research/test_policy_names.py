"""Research policies are imported by their names, and only by replays that run them."""

import subprocess
import sys

import pytest

from acmeweb.common.env import ROOT
from scheduling.whatif.replay.policies import RESEARCH_POLICIES, policy_rules

LOADED = """
import sys
from scheduling.engine.policies import POLICY_RULES
from scheduling.whatif.replay import requests, run, start_estimates
print(*[name for name in sys.modules if name.startswith("scheduling.research")])
"""


@pytest.mark.parametrize("name", RESEARCH_POLICIES)
def test_a_research_policy_has_the_name_by_which_it_is_imported(name):
    assert policy_rules(name).name == name


def test_replays_load_no_research_policy_by_themselves():
    loaded = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True)

    assert loaded.stdout.split() == []
