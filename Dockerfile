# One image for web, worker, the one-shot `migrate` and the simulated cluster; the command tells them apart.
# The full Python image has the C compiler that the engine's hot modules are built with; what it takes stays behind.
FROM python:3.13 AS build
WORKDIR /build
COPY requirements.lock requirements-compile.lock ./
RUN python -m venv /venv \
    && /venv/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --require-hashes -r requirements.lock \
    && /venv/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --require-hashes \
        -r requirements-compile.lock --target /compiler
COPY pyproject.toml ./
COPY acmeweb acmeweb
COPY jobs jobs
COPY scheduling scheduling
RUN PYTHONPATH=/compiler /venv/bin/python -m acmeweb.services.compile_engine || echo "The image is made without it."

FROM python:3.13-slim
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 ACME_VAR=/var/lib/acme
# The directories exist with their owner, so that a named volume mounted there begins with that owner.
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin acme \
    && install -d -o acme -g acme /var/lib/acme /var/lib/acme/cluster /var/lib/acme/pod-logs
COPY --from=build /venv /venv
WORKDIR /app
COPY manage.py pyproject.toml ./
COPY acmeweb acmeweb
COPY jobs jobs
COPY failures failures
COPY scheduling scheduling
COPY templates templates
COPY static static
RUN python -m compileall -q . && python -m failures.diagnosis.tables && python manage.py prepare --static-only \
    && chown -R acme:acme /var/lib/acme
USER 10001:10001
EXPOSE 8000
# The largest part of an orderly stop is a worker that finishes its turn (50 s at most, usually one).
STOPSIGNAL SIGTERM
CMD ["python", "-m", "acmeweb.services.web", "--host=0.0.0.0", "--port=8000", "--per-core"]
