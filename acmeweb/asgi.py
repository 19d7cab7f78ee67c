"""The ASGI application: HTTP goes to Django, websockets go to the live consumer."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "acmeweb.settings")

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.conf import settings
from django.urls import path

from acmeweb.auth.client_address import TrustedProxyMiddleware
from acmeweb.django_asgi import ThreadedASGIHandler
from acmeweb.startup import freeze_loaded_modules, require_secret_key

require_secret_key()
http = ThreadedASGIHandler()

from acmeweb.batching.heartbeats import HeartbeatBatching
from acmeweb.batching.submissions import SubmissionBatching
from acmeweb.updates.consumers import LiveConsumer  # models need the application to be set up
from jobs.api.log_stream import LogStreamMiddleware

protocols = ProtocolTypeRouter(
    {
        "http": HeartbeatBatching(SubmissionBatching(LogStreamMiddleware(http))),
        "websocket": AllowedHostsOriginValidator(
            AuthMiddlewareStack(URLRouter([path("live/", LiveConsumer.as_asgi())]))
        ),
    }
)
application = TrustedProxyMiddleware(protocols, settings.ACME_TRUSTED_PROXIES)
freeze_loaded_modules()
