"""Django settings. Everything that differs between two installations comes from the environment (see .env.example)."""

import ipaddress
import secrets
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from acmeweb.common import env as environment
from acmeweb.common.env import ROOT
from jobs.core.cluster_kinds import PodLimits, PodPrivilege

env = environment.load()

VAR = Path(env.text("ACME_VAR", str(ROOT / "var")))
DEBUG = env.flag("ACME_DEBUG", False)
HTTPS = env.flag("ACME_HTTPS", False)

# There is no default key: a process without SECRET_KEY makes up its own and cannot read existing sessions. Servers and
# workers (asgi.py, celery.py) refuse to start that way.
SECRET_KEY_GIVEN = bool(env.text("SECRET_KEY"))
SECRET_KEY = env.text("SECRET_KEY") or secrets.token_urlsafe(48)
BIND = env.text("ACME_BIND", "127.0.0.1")
ALLOWED_HOSTS = [*env.words("ACME_HOSTS"), "localhost", "127.0.0.1", "[::1]", socket.gethostname().lower()]
if BIND not in ("0.0.0.0", "::"):  # noqa: S104 - the wildcard address is not a host name
    ALLOWED_HOSTS.append(f"[{BIND}]" if ":" in BIND else BIND)
CSRF_TRUSTED_ORIGINS = env.words("ACME_ORIGINS")
# Reverse proxies whose X-Forwarded-For and X-Forwarded-Proto count (acmeweb/auth/client_address.py)
ACME_TRUSTED_PROXIES = tuple(map(ipaddress.ip_network, env.networks("ACME_TRUSTED_PROXIES")))

INSTALLED_APPS = [
    "acmeweb",
    "jobs",
    "failures",
    "scheduling",
    "scheduling.simulation",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
]

MIDDLEWARE = [
    "acmeweb.middleware.RequestMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "acmeweb.staticfiles.StaticFilesMiddleware",
    "acmeweb.middleware.CompressionMiddleware",
    "acmeweb.auth.sessions.IdleTimeoutMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "acmeweb.urls"
ASGI_APPLICATION = "acmeweb.asgi.application"
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "login"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "acmeweb.pages.context.instance_context",
            ],
        },
    },
]

# What apps add to pages of apps that do not know them: functions of the request and the page's subject that return HTML
PAGE_EXTRAS = {
    "home": ["scheduling.simulation.pages.history.demo_progress"],
    "job": ["scheduling.simulation.pages.faults.job_fault_form"],
    "node": ["scheduling.simulation.pages.faults.node_fault_form"],
}
# Sets the clocks of nodes that no program of the site can reach, because they are simulated
SIMULATED_CLOCKS = "scheduling.simulation.client.set_clocks"

ACME_ROLE = environment.database_role(env)  # web, loops or long; empty for management commands
_database = env.url(("DATABASE_URL",), ("postgresql", "postgres"))
_database = _database and environment.with_password(_database, env.text("DATABASE_PASSWORD"))
DATABASES: dict[str, dict[str, Any]] = {
    "default": environment.database_settings(_database) if _database else {"ENGINE": "django.db.backends.dummy"}
}
if _database:
    # The pool keeps connections across requests; Django's persistent connections (CONN_MAX_AGE) must be off with it.
    DATABASES["default"]["OPTIONS"]["pool"] = {
        "min_size": 1,
        "max_size": env.number("ACME_DB_POOL", 8, 1, 200),
        "timeout": 10,
    }
    DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
    if ACME_ROLE:
        _options = DATABASES["default"]["OPTIONS"].get("options", "")
        DATABASES["default"]["OPTIONS"]["options"] = environment.with_timeouts(_options, ACME_ROLE)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

_valkey = env.url(("VALKEY_URL", "REDIS_URL"), ("redis", "rediss", "valkey", "unix"))
_valkey = _valkey and environment.with_password(_valkey, env.text("VALKEY_PASSWORD"))
# Clients know the scheme redis:// only; a Valkey server speaks the same protocol.
VALKEY_URL = _valkey._replace(scheme=_valkey.scheme.replace("valkey", "redis")).geturl() if _valkey else ""

# The cluster that `make up` starts: the simulated one, or this machine.
OWN_CLUSTER_URL = env.text("SIMULATED_CLUSTER_URL", "http://127.0.0.1:6820")
OWN_CLUSTER_TOKEN_FILE = env.text("OWN_CLUSTER_TOKEN_FILE")
OWN_KUBERNETES_URL = env.text("SIMULATED_KUBERNETES_URL")
OWN_KUBECONFIG = env.text("OWN_KUBECONFIG")  # of the demo's Kubernetes cluster; empty: there is none
OWN_CLUSTER_USER = "acme"  # sent with the token as X-SLURM-USER-NAME
# Directories that the settings of clusters may name (jobs/logs/allowed_paths.py)
ACME_TOKEN_DIRS = env.directories("ACME_TOKEN_DIRS", f"{VAR.absolute() / 'tokens'},/etc/acme/tokens")
ACME_LOG_DIRS = env.directories("ACME_LOG_DIRS")
# What the pod templates of clusters may use of the nodes
ACME_POD_LIMITS = PodLimits(
    host_paths=tuple(env.directories("ACME_POD_HOST_PATHS")),
    privileges=frozenset(env.choices("ACME_POD_PRIVILEGES", tuple(PodPrivilege))),
)
ACME_POD_LOG_DAYS = env.number("ACME_POD_LOG_DAYS", 90, 1, 3650)  # how long copied logs in ACME_VAR stay

CHANNEL_LAYERS = {
    "default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [VALKEY_URL]}}
    if VALKEY_URL
    else {"BACKEND": "channels.layers.InMemoryChannelLayer"}
}

# Forecasts whether a submitted job meets its deadline. The app jobs asks it by name, because it imports no other app
DEADLINE_FORECAST = "scheduling.queries.submission_preview.forecast_deadline"
CURRENCY = env.text("ACME_CURRENCY", "USD")  # currency of the clusters' prices

CELERY_BROKER_URL = VALKEY_URL.replace("unix://", "redis+socket://") or "memory://"
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# The broker redelivers a message only after the longest task that may be redelivered is surely dead.
CELERY_TASK_SOFT_TIME_LIMIT = 50
CELERY_TASK_TIME_LIMIT = 60
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 90,
    "unacked_restore_interval": 2,
    "unacked_restore_throttle": 1,
    "socket_timeout": 10,
    "socket_connect_timeout": 2,
    "max_retries": 0,  # do not wait for an unavailable broker: a loop finds the work
}
CELERY_TIMEZONE = "UTC"
# Counters and durations are not worth a longer wait; tests need all of them, however slow the machine
VALKEY_COUNTING_S = 60.0 if env.flag("ACME_TESTING", False) else 0.5

# Fragments that are the same for all users are rendered once (acmeweb/updates/fragment_cache.py). Not in tests, where
# each test has other rows under the same keys
_memory = "dummy.DummyCache" if env.flag("ACME_TESTING", False) else "locmem.LocMemCache"
CACHES = {"default": {"BACKEND": f"django.core.cache.backends.{_memory}"}}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "acmeweb.auth.api_authentication.BearerTokenAuthentication",
        "acmeweb.auth.api_authentication.BrowserSessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["jobs.rest.permissions.EndpointRulePermission"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["jobs.rest.json_body.StrictJSONParser"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "jobs.rest.json_body.JSONContentNegotiation",
    "DEFAULT_THROTTLE_CLASSES": ["jobs.rest.throttle.PerUserThrottle"],
    "DEFAULT_SCHEMA_CLASS": "jobs.rest.schema.EndpointRuleSchema",
    "DEFAULT_METADATA_CLASS": None,
    "EXCEPTION_HANDLER": "acmeweb.api_root.answer_error",
    "UNAUTHENTICATED_USER": None,
    "URL_FORMAT_OVERRIDE": None,
}
ACME_METRICS_NETWORKS = env.networks("ACME_METRICS_NETWORKS")
# Address at which jobs reach Acme, as seen from the nodes of the clusters; empty: jobs get no address
_url = env.url(("ACME_URL",), ("http", "https"))
ACME_URL = _url.geturl() if _url else ""
# Notifications: the mail server, and networks that webhooks may reach in addition to the public internet
_mail = env.url(("ACME_MAIL_URL",), ("smtp", "smtp+tls", "smtps"))
EMAIL_HOST = (_mail.hostname or "") if _mail else ""
EMAIL_USE_SSL, EMAIL_USE_TLS = bool(_mail and _mail.scheme == "smtps"), bool(_mail and _mail.scheme == "smtp+tls")
EMAIL_PORT = (_mail.port if _mail else None) or (465 if EMAIL_USE_SSL else 587 if EMAIL_USE_TLS else 25)
EMAIL_HOST_USER = unquote((_mail.username if _mail else None) or "")
EMAIL_HOST_PASSWORD = unquote((_mail.password if _mail else None) or "")
EMAIL_TIMEOUT = 10  # for each step of the conversation; less than the time limit of the loop that sends
ACME_MAIL_FROM = env.text("ACME_MAIL_FROM", "acme@localhost")
ACME_WEBHOOK_NETWORKS = tuple(map(ipaddress.ip_network, env.networks("ACME_WEBHOOK_NETWORKS")))
# Program that sets the clocks of GPUs when power approaches a budget (scheduling/clusters/clock_command.py)
ACME_POWER_CAP_COMMAND = env.command("ACME_POWER_CAP_COMMAND")
ACME_POWER_CAP_TIMEOUT_S = env.number("ACME_POWER_CAP_TIMEOUT_S", 20, 1, 40)
# `make up` always sets DEMO for its programs; an Acme that is started in another way is no demo
IS_DEMO = env.flag("DEMO", False)
DEMO_CLUSTERS = environment.demo_clusters(env)
DEMO_HISTORY_DAYS = env.number("DEMO_HISTORY_DAYS", 30, 0, 31)
DEMO_SPEED = env.number("DEMO_SPEED", 4, 1, 60)
# Longest life of a new token, in days; 0: no limit
ACME_TOKEN_MAX_DAYS = env.number("ACME_TOKEN_MAX_DAYS", 365, 0, 36_500)
# Waiting jobs, counting array tasks; 0: no limit
ACME_MAX_WAITING_PER_USER = env.number("ACME_MAX_WAITING_PER_USER", 5_000, 0, 10_000_000)
ACME_MAX_WAITING_PER_TEAM = env.number("ACME_MAX_WAITING_PER_TEAM", 10_000, 0, 10_000_000)
ACME_API_PER_MINUTE = env.number("ACME_API_PER_MINUTE", 30_000, 1, 10_000_000)
# A learned rule is adopted automatically after this many confirmed and no rejected hits; 0: by hand only
ACME_ADOPT_RULES_AFTER = env.number("ACME_ADOPT_RULES_AFTER", 0, 0, 1000)
# A language model for failures that the rules cannot classify: any OpenAI-compatible endpoint, up to and with /v1
_agent = env.url(("ACME_AGENT_URL",), ("http", "https"))
ACME_AGENT_URL = _agent.geturl() if _agent else ""
ACME_AGENT_MODEL = env.text("ACME_AGENT_MODEL")
ACME_AGENT_KEY = env.text("ACME_AGENT_KEY")
ACME_AGENT_VOTES = env.number("ACME_AGENT_VOTES", 3, 1, 15)
ACME_AGENT_TIMEOUT_S = env.number("ACME_AGENT_TIMEOUT_S", 30, 1, 300)
ACME_AGENT_BUDGET_S = env.number("ACME_AGENT_BUDGET_S", 60, 1, 600)
# In cents: the maximum for one failure, and the prices of a million tokens (0: free)
ACME_AGENT_BUDGET_CENTS = env.number("ACME_AGENT_BUDGET_CENTS", 25, 0, 100_000)
ACME_AGENT_CENTS_IN = env.number("ACME_AGENT_CENTS_IN", 0, 0, 1_000_000)
ACME_AGENT_CENTS_OUT = env.number("ACME_AGENT_CENTS_OUT", 0, 0, 1_000_000)
DATA_UPLOAD_MAX_MEMORY_SIZE = 16 * 1024 * 1024  # 5,000 jobs in one request
SPECTACULAR_SETTINGS = {
    "TITLE": "Acme",
    "DESCRIPTION": "Jobs, nodes, failures and scheduling of GPU clusters.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "POSTPROCESSING_HOOKS": [],  # keep enums inline: as named schemas they clash
    "APPEND_COMPONENTS": {
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer", "description": "A token: Authorization: Bearer acme_…"},
            "run": {"type": "http", "scheme": "bearer", "description": "A running attempt's ACME_PROGRESS_TOKEN."},
            "session": {"type": "apiKey", "in": "cookie", "name": "sessionid"},
        }
    },
}

# Sign-in with OpenID Connect; None: passwords only
OIDC = env.oidc()

# The only backend: a second one would check passwords without the limits (acmeweb/auth/login_limits.py)
AUTHENTICATION_BACKENDS = ["acmeweb.auth.login_limits.ThrottledBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True

STATIC_URL = "static/"
STATICFILES_DIRS = [ROOT / "static"]
STATIC_ROOT = VAR / "static"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if DEBUG or env.flag("ACME_TESTING", False)
        else "acmeweb.staticfiles.MinifiedStaticFilesStorage"
    },
}

# Tests have no collected files; elsewhere a missing directory deserves WhiteNoise's warning
WHITENOISE_AUTOREFRESH = WHITENOISE_USE_FINDERS = DEBUG or env.flag("ACME_TESTING", False)

SESSION_ENGINE = "acmeweb.auth.sessions"
# A session ends after this time without activity
SESSION_COOKIE_AGE = env.number("ACME_SESSION_IDLE_HOURS", 12, 1, 8760) * 3600
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = HTTPS
# The probes of an orchestrator use plain HTTP, directly to the process.
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$"]
SECURE_HSTS_SECONDS = int(timedelta(days=365).total_seconds()) if HTTPS else 0
# Preloading affects all names of the domain for months and cannot be undone quickly, so it must be enabled explicitly.
# Browsers accept it only together with includeSubDomains, which alone would already break other hosts of the domain.
SECURE_HSTS_PRELOAD = HTTPS and env.flag("ACME_HSTS_PRELOAD", False)
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD
SECURE_PROXY_SSL_HEADER: tuple[str, str] | None = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": "acmeweb.middleware.RequestLogFormatter",
            "fmt": "%(asctime)s %(levelname)s %(name)s %(message)s",
        }
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": env.text("ACME_LOG_LEVEL", "INFO")},
    "loggers": {"django.db.backends": {"level": "WARNING"}, "httpx": {"level": "WARNING"}},
}
