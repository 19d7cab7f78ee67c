from django.apps import AppConfig


class AcmeWebConfig(AppConfig):
    name = "acmeweb"

    def ready(self) -> None:
        # Processes that only send tasks need the broker's address too
        from acmeweb import celery, database_times  # noqa: F401
        from acmeweb.auth import login_events
        from acmeweb.common import http_client
        from acmeweb.common.connection_release import release_connections

        login_events.connect()
        database_times.use_fast_time_loader_in_new_connections()
        http_client.before_each_call(release_connections)
