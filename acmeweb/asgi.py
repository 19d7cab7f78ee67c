"""The web server's door: HTTP to Django, websockets to the live consumer."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "acmeweb.settings")

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.asgi import get_asgi_application
from django.urls import path

from acmeweb.serving import refuse_without_key

refuse_without_key()
http = get_asgi_application()

from acmeweb.consumers import LiveConsumer  # models need the application to be set up
from jobs.api.following import Following

application = ProtocolTypeRouter(
    {
        "http": Following(http),
        "websocket": AllowedHostsOriginValidator(
            AuthMiddlewareStack(URLRouter([path("live/", LiveConsumer.as_asgi())]))
        ),
    }
)
