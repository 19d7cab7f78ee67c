from django.apps import AppConfig


class AcmeWebConfig(AppConfig):
    name = "acmeweb"

    def ready(self) -> None:
        # Who sends a task must know the broker, not only who carries it out
        from acmeweb import celery  # noqa: F401
