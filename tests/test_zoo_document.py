"""docs/zoo.md: the policies, placements and settings that it names exist, and every system has one row."""

from __future__ import annotations

import importlib
import pkgutil
import re
import shlex
from collections import Counter

import pytest
from django.core.management import get_commands

from acmeweb.common.env import ROOT
from bench.zoo import SYSTEMS
from scheduling.management.commands.simulate import Command
from scheduling.research import rounds, widths
from scheduling.research.rounds.values import RoundPolicy
from scheduling.research.widths.values import WidthPolicy
from scheduling.whatif.replay import requests

DOCUMENT = (ROOT / "docs" / "zoo.md").read_text()
WRITTEN = list(dict.fromkeys(re.findall(r"`([^`]+)`", DOCUMENT)))
ROW = re.compile(r"^\| (?P<system>[^|]+ \([^|()]+ \d{4}\)) \| (?P<state>\w+) \|(?P<rest>.*)\|$", re.MULTILINE)
ROWS = [(found["system"], found["state"], found["rest"].split(" | ")) for found in ROW.finditer(DOCUMENT)]


def spans(prefix):
    return [text for text in WRITTEN if text.startswith(prefix)]


def policy_names(package, base):
    """The policies of the package; other tests have some of their own."""
    modules = [
        importlib.import_module(found.name) for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    ]
    classes = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    return {found.name for found in classes if issubclass(found, base) and hasattr(found, "name")}


@pytest.mark.parametrize("options", spans("--"))
def test_options_in_the_document_are_accepted(options):
    parser = Command().create_parser("manage.py", "simulate")

    parsed = parser.parse_args(["trace.csv", *shlex.split(options)])

    policies = requests.parse_policies(parsed.policy)
    requests.parse_policy_settings(parsed.policy_settings or "{}", policies)
    setting = requests.replay_setting(
        nodes=32,
        placement=parsed.placement,
        noise=parsed.noise,
        best_effort=parsed.best_effort,
        vcs={"vc": 4} if parsed.vcs else None,
        profiles=requests.profile_table(
            profiles=[{"name": "job", "gpu_percent": 50, "memory_mb": 1_000}] if parsed.profiles else [],
            draw_profiles=parsed.draw_profiles,
        ),
        power=requests.power_setting(**{name: getattr(parsed, name) for name in ("energy", "price_per_kwh", "sleep")}),
    )
    requests.check_power_policies(policies, setting)
    requests.check_packing_policies(policies, setting)
    if parsed.quota:
        requests.check_quota_policies(policies)


@pytest.mark.parametrize(
    ("prefix", "package", "base"), [("rounds", rounds, RoundPolicy), ("widths", widths, WidthPolicy)]
)
def test_policies_of_other_replays_exist(prefix, package, base):
    written = {text.removeprefix(f"{prefix} ") for text in spans(f"{prefix} ")}

    assert written
    assert written - policy_names(package, base) == set()


def test_every_policy_of_the_other_replays_is_in_the_document():
    policies = {f"rounds {name}" for name in policy_names(rounds, RoundPolicy)}
    policies |= {f"widths {name}" for name in policy_names(widths, WidthPolicy)}

    # Variants for GPUs of one type, and baselines that other systems are compared with
    assert policies - set(WRITTEN) == {"widths tiresias", "widths max-sum"}


def test_commands_in_the_document_exist():
    commands = {text.split()[1] for text in spans("manage.py ")}
    compared = {text.split("--only ")[1] for text in spans("python bench/zoo.py")}

    assert commands and commands <= set(get_commands())
    assert compared and compared <= set(SYSTEMS)


def test_every_system_has_one_row_that_names_settings_or_a_reason():
    stated = re.match(r".*?\n\n(\d+) schedulers", DOCUMENT, re.DOTALL)
    names = Counter(system for system, _, _ in ROWS)

    assert stated and len(ROWS) == int(stated[1])
    assert {name for name, count in names.items() if count > 1} == set()
    for system, state, cells in ROWS:
        assert state in ("same", "part", "none"), system
        assert cells[-1].strip().endswith("."), system
        assert any("`" in cell for cell in cells[:-1]) == (state != "none"), system
