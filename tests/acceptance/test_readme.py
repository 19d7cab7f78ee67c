"""The first steps of the README work on the demo as they are printed; only the port differs."""

import re
import subprocess

import pytest

from acmeweb.common.env import ROOT
from tests.patience import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]


def first_steps():
    section = (ROOT / "README.md").read_text().partition("## First steps\n")[2].partition("\n## ")[0]
    return "".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL))


def test_first_steps_of_the_readme_work_on_the_demo(instance, tmp_path):
    instance.start(DEMO_CLUSTERS="seren,kalos").ready()
    seen = "SELECT count(DISTINCT cluster_id) FROM jobs_node"
    until(lambda: instance.sql(seen).fetchone() == (2,), what="the workers never saw the nodes of both clusters")
    steps = first_steps().replace("http://127.0.0.1:8000", f"http://127.0.0.1:{instance.port}")

    done = subprocess.run(
        ["bash", "-exo", "pipefail", "-c", steps],
        cwd=ROOT,
        env=instance.environment | {"XDG_CONFIG_HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
