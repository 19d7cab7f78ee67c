"""Create a token for a script. Stdout contains only the secret, so it can be stored in a file or a variable."""

from __future__ import annotations

import getpass
from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from acmeweb.common.errors import InvalidInput
from jobs.actions import tokens as token_actions
from jobs.actions.journal import Author
from jobs.models import Team, TokenScope, clock
from jobs.web.token_forms import normalize_network


class Command(BaseCommand):
    help = "Create a token for a script and print its secret. The secret cannot be shown again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("user", help="The user for whom the token acts.")
        parser.add_argument("--scope", required=True, help=f"One of {', '.join(TokenScope.values)}.")
        parser.add_argument(
            "--days", type=int, help="Days until it expires. Default: the maximum, ACME_TOKEN_MAX_DAYS."
        )
        parser.add_argument("--name", default="script", help="Purpose, shown in the list of tokens. Default: script.")
        parser.add_argument("--team", help="Restrict the token to one team.")
        parser.add_argument(
            "--network",
            action="append",
            default=[],
            help="Network from which the token may be used, such as 10.0.0.0/8. Can be repeated.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        user = get_user_model().objects.filter(username=options["user"]).first()
        if user is None:
            raise CommandError(f"User {options['user']!r} not found.")
        if options["scope"] not in TokenScope.values:
            raise CommandError(f"{options['scope']!r} is not a scope. Use one of {', '.join(TokenScope.values)}.")
        if options["days"] is not None and not 1 <= options["days"] <= 3650:
            raise CommandError(f"--days {options['days']} is not between 1 and 3650.")
        team = Team.objects.where(user).filter(name=options["team"]).first() if options["team"] else None
        if options["team"] and team is None:
            raise CommandError(f"{user} is not a member of team {options['team']!r}.")
        try:
            networks = [normalize_network(text) for text in options["network"]]
        except ValidationError as error:
            raise CommandError(error.message) from None
        lifetime = timedelta(days=options["days"]) if options["days"] else token_actions.max_token_lifetime()
        try:
            _, secret = token_actions.create_token(
                user=user,
                team=team,
                scope=options["scope"],
                name=options["name"][:80],
                expires_at=clock.now() + lifetime if lifetime else None,
                networks=networks,
                author=Author(by=_operator_name()),
            )
        except InvalidInput as error:
            raise CommandError(str(error)) from None
        self.stdout.write(secret)


def _operator_name() -> str:
    """The login name on this machine as event author, if there is one."""
    try:
        return f"{getpass.getuser()[:100]} by manage.py"
    except (KeyError, OSError):
        return "manage.py"
