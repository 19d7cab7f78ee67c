"""The web server's door: HTTP to Django, websockets to the live consumer."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "acmeweb.settings")

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.conf import settings
from django.urls import path

from acmeweb.client_address import TrustedProxies
from acmeweb.handler import DjangoInThreads
from acmeweb.serving import keep_what_is_loaded, refuse_without_key

refuse_without_key()
http = DjangoInThreads()

from acmeweb.consumers import LiveConsumer  # models need the application to be set up
from acmeweb.heartbeats import Heartbeats
from acmeweb.submissions import Submissions
from jobs.api.following import Following

protocols = ProtocolTypeRouter(
    {
        "http": Heartbeats(Submissions(Following(http))),
        "websocket": AllowedHostsOriginValidator(
            AuthMiddlewareStack(URLRouter([path("live/", LiveConsumer.as_asgi())]))
        ),
    }
)
application = TrustedProxies(protocols, settings.ACME_TRUSTED_PROXIES)
keep_what_is_loaded()
