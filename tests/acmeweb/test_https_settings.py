"""The settings that ACME_HTTPS enables, and those that need a separate variable."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from acmeweb.common.env import ROOT

SHOW = """
import json
from acmeweb import settings as s
print(json.dumps([s.SECURE_HSTS_SECONDS > 0, s.SECURE_HSTS_INCLUDE_SUBDOMAINS, s.SECURE_HSTS_PRELOAD]))
"""


@pytest.mark.parametrize(
    ("given", "hsts"),
    [
        ({}, [False, False, False]),
        ({"ACME_HTTPS": "1"}, [True, False, False]),
        ({"ACME_HTTPS": "1", "ACME_HSTS_PRELOAD": "1"}, [True, True, True]),
        ({"ACME_HSTS_PRELOAD": "1"}, [False, False, False]),
    ],
)
def test_hsts_covers_other_hosts_only_on_request(given, hsts):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ACME_H")}

    done = subprocess.run([sys.executable, "-c", SHOW], cwd=ROOT, env=kept | given, capture_output=True, text=True)

    assert json.loads(done.stdout) == hsts
