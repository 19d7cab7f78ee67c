# The two main commands are `make up` and `make test`; both run the set-up first, which costs nothing the second time.
#   make up        starts everything; DEMO=0 without the demo, ACME_PORT=9000 on another port (variables: .env.example)
#   make test      runs the tests; ARGS="-k leash -x" is passed to pytest
#   make unit      runs the tests of a file that need no database, without servers: FILE=tests/jobs/core/test_spec.py
#   make test-system  runs the tests with whole instances, real clusters, chaos, fuzzing and most of the browser
#   make pure      runs the tests that need no database on another Python: ON=/path/to/python3.13
#   make coverage  measures the branch coverage of the pure modules
#   make compiled  compiles the engine's hot modules and waits for it; `make up` does this in the background
#   PYTHON=/path/to/python3.12 selects the interpreter for .venv

PYTHON =
ON =
ARGS =
FILE =
SEED =
UPGRADE =
PURE_TESTS = tests/jobs tests/failures tests/scheduling --ignore tests/scheduling/simulation/kubernetes --deselect tests/scheduling/backends/test_contract.py -m "not system"
OTHER_PYTHON_TESTS = -p tests.without_database --parameters=2 --hypothesis-profile=few tests/client $(PURE_TESTS) --deselect tests/scheduling/backends/kubernetes/test_contract.py

# Dozens of processes start. Without bytecode files each of them would compile all modules again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup up compiled test unit test-system pure coverage chaos lint map lock secrets clean
.NOTPARALLEL:

setup:
	@PYTHON='$(PYTHON)' sh acmeweb/services/setup.sh

up: setup
	@.venv/bin/python -m failures.diagnosis.tables
	@nice .venv/bin/python -m acmeweb.services.compile_engine >.venv/acme-engine.log 2>&1 </dev/null &
	@.venv/bin/python manage.py up

compiled: setup
	@.venv/bin/python -m acmeweb.services.compile_engine

test: setup
	@.venv/bin/python -m pytest -n auto --dist worksteal -m "not system" $(ARGS)

unit: setup
	@test -n '$(FILE)' || { echo "FILE is missing: make unit FILE=tests/jobs/core/test_spec.py"; exit 2; }
	@.venv/bin/python -m pytest -q -p tests.without_database $(FILE) $(ARGS)

test-system: setup
	@.venv/bin/python -m pytest -n auto --dist worksteal -m "system or hypothesis" --hypothesis-profile=thorough $(ARGS)

# On another Python, in an environment that is deleted afterwards. Without the contract tests, most of which wait
pure: setup
	@home=$$(mktemp -d) && trap 'rm -rf "$$home"' EXIT && export UV_PYTHON_DOWNLOADS=never UV_SYSTEM_CERTS=1 && \
	.venv/bin/uv venv --quiet --clear --python '$(ON)' "$$home" && export VIRTUAL_ENV="$$home" && \
	.venv/bin/uv pip sync --quiet --require-hashes requirements-dev.lock && \
	.venv/bin/uv pip install --quiet --no-deps --no-build-isolation -e client && \
	export ACME_COMPILED=0 && \
	set -- "$$home/bin/python" -m pytest -q -n 0 -o cache_dir="$$home/cache" $(OTHER_PYTHON_TESTS) && \
	{ "$$@" || { echo "The failed tests run once more: what depends on the version of Python fails again."; "$$@" --last-failed; }; }

# Branch coverage of the pure modules, by the tests that need no database
coverage: setup
	@rm -rf .pytest_cache/coverage && mkdir -p .pytest_cache/coverage
	@ACME_COMPILED=0 .venv/bin/python -m coverage run -m pytest -q -n auto -p tests.without_database $(PURE_TESTS)
	@.venv/bin/python -m coverage combine -q && .venv/bin/python -m coverage report

# Injects faults into a running instance for ten minutes; the last line has the counts. ARGS=--list-faults lists them
chaos: setup
	@.venv/bin/python -m tests.chaos.storm $(if $(SEED),--seed $(SEED)) $(ARGS)

lint: setup
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

# Generates docs/modules.md, docs/job-states.md and docs/glossary.md from the code
map: setup
	@.venv/bin/python docs/module_map.py

# Locks every wheel of every platform by hash. No index is named, so the files install from any mirror.
lock: setup
	@UPGRADE='$(UPGRADE)' sh acmeweb/services/lock.sh

# How the containers reach the simulated Kubernetes cluster; JSON is YAML
KUBECONFIG_FORMAT = {"kind": "Config", "current-context": "kalos", \
    "clusters": [{"name": "kalos", "cluster": {"server": "http://kalos:6443"}}], \
    "users": [{"name": "acme", "user": {"token": "%s"}}], \
    "contexts": [{"name": "kalos", "context": {"cluster": "kalos", "user": "acme"}}]}

# For docker compose. The directory is closed; the files must be readable by the users of the containers.
secrets:
	@test -d secrets || mkdir -m 700 secrets
	@for name in secret_key database_password valkey_password cluster_token kalos_token admin_password; do \
	    test -s secrets/$$name || od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >secrets/$$name; \
	    chmod 644 secrets/$$name; \
	done
	@printf '$(KUBECONFIG_FORMAT)' "$$(cat secrets/kalos_token)" >secrets/kalos_kubeconfig
	@chmod 644 secrets/kalos_kubeconfig

# Removes everything that can be rebuilt. The data in var/ stays.
clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
