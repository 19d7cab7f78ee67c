# The two commands are `make up` and `make test`; each sets the machine up first, which costs nothing the second time.
#   make up        start everything; DEMO=0 starts it empty, ACME_PORT=9000 elsewhere (every variable: .env.example)
#   make test      ARGS="-k leash -x" goes to pytest
#   make compiled  build the engine's hot modules as machine code and wait for it; `make up` does it in the background
#   PYTHON=/path/to/python3.12 chooses the interpreter that .venv is built from

PYTHON =
ARGS =
SEED =
UPGRADE =

.PHONY: setup up compiled test chaos lint map lock secrets clean
.NOTPARALLEL:

setup:
	@PYTHON='$(PYTHON)' sh acmeweb/services/setup.sh

up: setup
	@nice .venv/bin/python -m acmeweb.services.compile_engine >.venv/acme-engine.log 2>&1 </dev/null &
	@.venv/bin/python manage.py up

compiled: setup
	@.venv/bin/python -m acmeweb.services.compile_engine

test: setup
	@.venv/bin/python -m pytest -n auto --dist worksteal $(ARGS)

# Ten minutes of faults on a running instance; the last line has the counts. ARGS=--list-faults prints the faults
chaos: setup
	@.venv/bin/python -m tests.chaos.storm $(if $(SEED),--seed $(SEED)) $(ARGS)

lint: setup
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

# docs/modules.md, docs/job-states.md and docs/glossary.md from the code
map: setup
	@.venv/bin/python docs/module_map.py

# Every wheel of every platform, by hash; no index is named, so the files install from any mirror.
lock: setup
	@UPGRADE='$(UPGRADE)' sh acmeweb/services/lock.sh

# For docker compose. The directory is closed; the files must be readable to the containers' own users.
secrets:
	@test -d secrets || mkdir -m 700 secrets
	@for name in secret_key database_password valkey_password cluster_token admin_password; do \
	    test -s secrets/$$name || od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >secrets/$$name; \
	    chmod 644 secrets/$$name; \
	done

# What can be made again. The data in var/ stays.
clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
