"""docker-compose.yml, Dockerfile and .env.example, checked without Docker."""

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec

import pytest
import yaml
from django.core.management import get_commands

from acmeweb.common.env import ROOT
from scheduling.backends.kubernetes.connection.kubeconfig import parse_kubeconfig
from tests.patience import PATIENCE_S

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "acme"}
LONG_RUNNING = set(SERVICES) - {"migrate", "demo"}


def run(*words):
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)


def test_compose_file_is_valid():
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]

    done = run(*checker, "docker-compose.yml")

    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_file_has_all_services():
    assert {"db", "valkey", "migrate", "web", "worker", "cluster"} <= set(SERVICES)


@pytest.mark.parametrize("name", sorted(LONG_RUNNING))
def test_long_running_services_have_health_checks(name):
    assert SERVICES[name]["healthcheck"]["test"]


@pytest.mark.parametrize("name", sorted(set(OURS) - {"migrate", "cluster", "kalos"}))
def test_services_with_a_database_wait_for_the_schema(name):
    assert OURS[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}


@pytest.mark.parametrize("name", sorted(OURS))
def test_own_services_drop_all_privileges(name):
    service = OURS[name]

    assert service["cap_drop"] == ["ALL"] and service["read_only"] is True
    assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_secret_comes_from_a_file_and_is_declared(name):
    service = SERVICES[name]

    assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
    for variable, value in service.get("environment", {}).items():
        if re.search("PASSWORD|SECRET|TOKEN(?!_MAX)", variable) and not variable.endswith("_DIRS"):
            assert variable.endswith("_FILE")
            assert value.removeprefix("/run/secrets/") in service["secrets"]


def test_cluster_and_worker_share_the_token_file():
    assert "--token-file=/run/secrets/cluster_token" in SERVICES["cluster"]["command"]
    for name in ("cluster", "worker", "migrate"):
        assert "cluster_token" in SERVICES[name]["secrets"]


def test_make_secrets_creates_every_secret():
    made = re.search("for name in (.*); do", (ROOT / "Makefile").read_text())[1].split()

    assert {*made, "kalos_kubeconfig"} == set(COMPOSE["secrets"])


def test_make_secrets_writes_a_kubeconfig_for_the_kubernetes_cluster(tmp_path):
    subprocess.run(
        ["make", "-f", ROOT / "Makefile", "secrets"], cwd=tmp_path, check=True, capture_output=True, timeout=PATIENCE_S
    )

    access = parse_kubeconfig((tmp_path / "secrets/kalos_kubeconfig").read_text())
    port = next(word for word in SERVICES["kalos"]["command"] if word.startswith("--port=")).removeprefix("--port=")
    assert access.server == f"http://kalos:{port}"
    assert access.token.value == (tmp_path / "secrets/kalos_token").read_text()


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_named_volume_is_declared(name):
    mounted = {volume.partition(":")[0] for volume in SERVICES[name].get("volumes", [])}

    assert mounted <= set(COMPOSE["volumes"])


@pytest.mark.parametrize("name", sorted(OURS))
def test_command_of_every_service_exists(name):
    match OURS[name]["command"]:
        case ["python", "manage.py", command, *_]:
            assert command in get_commands()
        case ["python", "-m", module, *words]:
            assert find_spec(module)
            understood = run(sys.executable, "-m", module, "--help").stdout
            assert all(word.partition("=")[0] in understood for word in words if word.startswith("--"))
        case other:
            pytest.fail(f"nobody checks {other}")


def test_the_image_starts_the_same_web_server():
    written = (ROOT / "Dockerfile").read_text()

    assert yaml.safe_load(written.rpartition("CMD ")[2]) == OURS["web"]["command"]


def test_image_installs_only_the_runtime_lock_and_runs_unprivileged():
    written = (ROOT / "Dockerfile").read_text()

    assert "--require-hashes -r requirements.lock" in written and "requirements-dev" not in written
    assert "USER 10001:10001" in written


def test_every_variable_is_explained():
    reading = re.compile(r'(?:env|asked)\.(?:text|flag|number|words|choices|directories)\(\s*"([A-Z_]+)"')
    sources = [*ROOT.glob("acmeweb/**/*.py"), *ROOT.glob("scheduling/**/*.py"), *ROOT.glob("failures/**/*.py")]
    read = {name for source in sources for name in reading.findall(source.read_text())}
    used = set(re.findall(r"\$\{([A-Z_]+)", (ROOT / "docker-compose.yml").read_text()))
    explained = set(re.findall(r"^#?([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.M))

    assert read | used <= explained


@pytest.mark.parametrize(
    "name", ["requirements.lock", "requirements-dev.lock", "requirements-compile.lock", "requirements-uv.lock"]
)
def test_a_lock_names_no_host_and_hashes_everything(name):
    written = (ROOT / name).read_text()

    assert "://" not in written
    assert all("--hash=" in block for block in re.split(r"\n(?=\S)", written.strip()))


def test_scripts_are_valid_shell():
    for script in ("acmeweb/services/setup.sh", "acmeweb/services/lock.sh"):
        assert run("sh", "-n", script).returncode == 0
    assert run("bash", "-n", ".ci/run").returncode == 0


def test_no_container_command_contains_a_password():
    for service in SERVICES.values():
        words = service.get("command", [])
        assert "--requirepass" not in (shlex.split(words) if isinstance(words, str) else words)
