"""What must be given before anything is served."""

from django.conf import settings


def refuse_without_key() -> None:
    if not settings.SECRET_KEY_GIVEN:
        raise SystemExit("SECRET_KEY is not set: start with `make up`, or give a long random value of your own")
