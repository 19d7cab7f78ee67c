from django.apps import AppConfig


class AcmeWebConfig(AppConfig):
    name = "acmeweb"

    def ready(self) -> None:
        # Processes that only send tasks need the broker's address too
        from acmeweb import celery  # noqa: F401
