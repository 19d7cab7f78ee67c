"""The schema holds against whatever it allows and what it does not: no 5xx, no status it does not name, no answer that
is otherwise than described. Every operation is asked with good and with bad data, as somebody who may do everything.
"""

from __future__ import annotations

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, transaction
from hypothesis import HealthCheck, given, seed, settings

from acmeweb import api_root
from failures.loops.diagnose import diagnose_once
from failures.models import Incident
from jobs.actions import jobs as job_actions
from jobs.actions import progress
from jobs.actions.journal import SYNC
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import State
from jobs.models import Attempt, Cluster, clock
from tests.jobs.api import api_make as make

schemathesis = pytest.importorskip("schemathesis")
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi import checks  # noqa: E402

pytestmark = pytest.mark.django_db

EXAMPLES = 12
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
SMOKE = ("/api/v1/jobs/", "/api/v1/jobs/{id}/")  # the others only with `make test-system`
OPERATIONS = [
    pytest.param(path, method, marks=[] if path in SMOKE else pytest.mark.system, id=f"{method} {path}")
    for path, methods in api_root.openapi_schema()["paths"].items()
    for method in methods
]


@pytest.fixture(scope="module", autouse=True)
def schema():
    """Shared, because schemathesis searches all loaded modules for interesting values, once per schema."""
    found = schemathesis.openapi.from_dict(api_root.openapi_schema())
    found.app = WSGIHandler()
    return found


@pytest.fixture(scope="module", autouse=True)
def there(rows_for_module, tmp_path_factory):
    """Rows for the paths, so that not every response is a 404. Disconnects signals as Django's test client does."""
    tmp_path = tmp_path_factory.mktemp("logs")
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    make.cluster()
    Cluster.objects.update(log_root=str(tmp_path))
    user = make.configurer("olga")
    job = make.running(make.job(user, gpus_per_node=1))
    Attempt.objects.update(log_path="a.log")
    (tmp_path / "a.log").write_bytes(b"one\ntwo\n")
    died = make.running(make.job(user, gpus_per_node=1), gpus=(1,))
    job_actions.finish(died.attempts.get(), AttemptEnd(state=State.FAILED, at=clock.now(), exit_code=1), author=SYNC)
    Attempt.objects.update(log_path="a.log")
    diagnose_once(clock.now())
    names = {"jobs": {"id": str(job)}, "nodes": {"cluster": "seren", "name": "gpu001"}}
    names["simulations"] = {"id": str(make.simulation(user))}
    campaign = make.campaign(user)
    names |= {"campaigns": {"id": str(campaign)}, "suites": {"id": campaign.suite_id}}
    names |= {"clusters": {"name": "seren"}, "teams": {"name": "vision"}}
    names |= {
        "attempts": {"attempt": f"{died}.1"},
        "diagnoses": {"attempt": f"{died}.1"},
        "incidents": {"incident": Incident.objects.get().pk},
    }
    names |= {"diagnosis": {"id": str(died)}, "follow": {"id": str(died)}}  # the stream of an ended attempt ends
    yield {"all": make.token(user), "run": progress.run_token(job.attempts.get().key), "names": names}
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


class Undone(Exception):
    """Roll back the changes of an example, so that examples are independent."""


@pytest.mark.timeout(90)
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_responses_to_generated_requests_match_the_schema(path, method, mode, there, schema):
    operation = schema[path][method.upper()]
    token = there["run" if path.endswith("/progress/") else "all"]
    parts = path.strip("/").split("/")
    known = there["names"].get(parts[-1]) or there["names"].get(parts[2], {})

    @seed(1)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case):
        # Schemathesis does not decompress what a WSGI application answers
        headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"}
        if mode is GenerationMode.POSITIVE:
            case.path_parameters = {**(case.path_parameters or {}), **known}
        try:
            with transaction.atomic():
                case.call_and_validate(headers=headers, checks=CHECKS)
                raise Undone
        except Undone:
            pass

    ask()
