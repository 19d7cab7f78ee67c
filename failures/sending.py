"""One message to one channel, and in words what keeps it from arriving. It calls out; it changes no row."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
from django.conf import settings
from django.core.mail import EmailMessage

from failures import telling
from failures.models import Channel
from failures.telling import Message
from jobs import clock, outbound


class NotSent(Exception):
    """The message is a sentence about the receiver."""

    def __init__(self, why: str, status: int = 0) -> None:
        super().__init__(why)
        self.status = status


EXPECTED = (NotSent, outbound.ForbiddenTarget, httpx.HTTPError, httpx.InvalidURL, OSError)


def send(channel: Channel, message: Message, *, update: int = 0, delivery: str) -> None:
    """Raises one of EXPECTED where it does not arrive."""
    match channel.kind:
        case Channel.Kind.EMAIL:
            _mail(channel, message, update)
        case Channel.Kind.SLACK:
            _post(channel.target, telling.for_slack(message), {})
        case _:
            body = telling.for_webhook(message, update)
            signed = telling.signature(channel.secret, body, int(clock.now().timestamp()))
            _post(channel.target, body, {"Acme-Signature": signed, "Acme-Delivery": delivery})


def _post(target: str, body: bytes, headers: dict[str, str]) -> None:
    headers = {"Content-Type": "application/json", **headers}
    # What it answers beside its status is not read: it might never end
    with (
        outbound.client(settings.ACME_WEBHOOK_NETWORKS) as client,
        client.stream("POST", target, content=body, headers=headers) as answer,
    ):
        pass
    if answer.status_code // 100 != 2:
        raise NotSent(f"it answered {answer.status_code}", answer.status_code)


def _mail(channel: Channel, message: Message, update: int) -> None:
    """Later mails are answers to the first one, so that a reader's program keeps them together."""
    if not settings.EMAIL_HOST:
        raise NotSent("no mail server is configured (ACME_MAIL_URL)")
    thread = f"<incident-{message.incident}.{channel.pk}@{settings.ACME_MAIL_FROM.rpartition('@')[2]}>"
    headers = {"In-Reply-To": thread, "References": thread} if update else {"Message-ID": thread}
    EmailMessage(
        message.subject, "\n".join(message.lines), settings.ACME_MAIL_FROM, [channel.target], headers=headers
    ).send()


# --- a trial


@dataclass(frozen=True, kw_only=True)
class Tried:
    good: bool
    says: str
    advice: str = ""


def trial(channel: Channel) -> Tried:
    """Send a message that is plainly a test; what goes wrong is explained, and nothing is raised."""
    message = Message(
        incident=0, state="test", title="a test of this channel, nothing is wrong", cluster="no cluster", attempts=0
    )
    try:
        send(channel, message, delivery=f"test-{channel.pk}")
    except EXPECTED as error:
        return _explained(error)
    return Tried(good=True, says="The message was taken. Look whether it has arrived where people read it.")


STATUS = {
    401: "It wants to know who calls; such receivers take an address with a secret in it.",
    403: "It does not let us in: the address may have been revoked.",
    404: "Nothing is there any more: copy the address again from where it was made.",
    405: "It takes no POST: this is the address of a page, not of a webhook.",
    410: "It was taken away: make a new one there.",
    429: "It takes no more messages for now; try again in some minutes.",
}


def _explained(error: BaseException) -> Tried:
    match error:
        case NotSent(status=status) if status:
            advice = STATUS.get(status, "")
            if status // 100 == 3:
                advice = "It sends us on to another address; enter that one, for we follow nobody."
            return Tried(good=False, says=f"It answered {status}.", advice=advice or "Look into its own log.")
        case NotSent():
            return Tried(good=False, says=f"{str(error).capitalize()}.", advice="The site's environment sets that.")
        case outbound.ForbiddenTarget():
            advice = "Who runs the site may allow its network with ACME_WEBHOOK_NETWORKS."
            return Tried(good=False, says=f"The address {error}.", advice=advice)
        case httpx.TimeoutException():
            says = f"It did not answer within {outbound.SECONDS:.0f} seconds."
            return Tried(good=False, says=says, advice="Is a firewall between it and us?")
        case httpx.ConnectError():
            return Tried(good=False, says="Nobody listens there, or its certificate is not valid.", advice=str(error))
        case _:
            return Tried(good=False, says="It could not be sent.", advice=f"{type(error).__name__}: {error}"[:300])
