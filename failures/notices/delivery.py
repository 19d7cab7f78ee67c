"""One message to one channel, and in words what keeps it from arriving. It calls out; it changes no row."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
from django.conf import settings
from django.core.mail import EmailMessage

from acmeweb.common import outbound_http
from failures.models import Channel
from failures.notices import messages
from failures.notices.messages import IncidentMessage
from jobs.models import clock


class DeliveryError(Exception):
    """The message is a sentence about the receiver."""

    def __init__(self, why: str, status: int = 0) -> None:
        super().__init__(why)
        self.status = status


DELIVERY_ERRORS = (DeliveryError, outbound_http.ForbiddenUrl, httpx.HTTPError, httpx.InvalidURL, OSError)


def send(channel: Channel, message: IncidentMessage, *, update: int = 0, delivery: str) -> None:
    """Raises one of EXPECTED where it does not arrive."""
    match channel.kind:
        case Channel.Kind.EMAIL:
            _send_mail(channel, message, update)
        case Channel.Kind.SLACK:
            _post(channel.target, messages.slack_body(message), {})
        case _:
            body = messages.webhook_body(message, update)
            signed = messages.webhook_signature(channel.secret, body, int(clock.now().timestamp()))
            _post(channel.target, body, {"Acme-Signature": signed, "Acme-Delivery": delivery})


def _post(target: str, body: bytes, headers: dict[str, str]) -> None:
    headers = {"Content-Type": "application/json", **headers}
    # What it answers beside its status is not read: it might never end
    with (
        outbound_http.client(settings.ACME_WEBHOOK_NETWORKS) as client,
        client.stream("POST", target, content=body, headers=headers) as answer,
    ):
        pass
    if answer.status_code // 100 != 2:
        raise DeliveryError(f"it answered {answer.status_code}", answer.status_code)


def _send_mail(channel: Channel, message: IncidentMessage, update: int) -> None:
    """Later mails are answers to the first one, so that a reader's program keeps them together."""
    if not settings.EMAIL_HOST:
        raise DeliveryError("no mail server is configured (ACME_MAIL_URL)")
    thread = f"<incident-{message.incident}.{channel.pk}@{settings.ACME_MAIL_FROM.rpartition('@')[2]}>"
    headers = {"In-Reply-To": thread, "References": thread} if update else {"Message-ID": thread}
    EmailMessage(
        message.subject, "\n".join(message.lines), settings.ACME_MAIL_FROM, [channel.target], headers=headers
    ).send()


# --- a trial


@dataclass(frozen=True, kw_only=True)
class ChannelTestResult:
    good: bool
    says: str
    advice: str = ""


def send_test_message(channel: Channel) -> ChannelTestResult:
    """Send a message that is plainly a test; what goes wrong is explained, and nothing is raised."""
    message = IncidentMessage(
        incident=0, state="test", title="a test of this channel, nothing is wrong", cluster="no cluster", attempts=0
    )
    try:
        send(channel, message, delivery=f"test-{channel.pk}")
    except DELIVERY_ERRORS as error:
        return _explain_error(error)
    return ChannelTestResult(good=True, says="The message was taken. Look whether it has arrived where people read it.")


STATUS_ADVICE = {
    401: "It wants to know who calls; such receivers take an address with a secret in it.",
    403: "It does not let us in: the address may have been revoked.",
    404: "Nothing is there any more: copy the address again from where it was made.",
    405: "It takes no POST: this is the address of a page, not of a webhook.",
    410: "It was taken away: make a new one there.",
    429: "It takes no more messages for now; try again in some minutes.",
}


def _explain_error(error: BaseException) -> ChannelTestResult:
    match error:
        case DeliveryError(status=status) if status:
            advice = STATUS_ADVICE.get(status, "")
            if status // 100 == 3:
                advice = "It sends us on to another address; enter that one, for we follow nobody."
            return ChannelTestResult(
                good=False, says=f"It answered {status}.", advice=advice or "Look into its own log."
            )
        case DeliveryError():
            return ChannelTestResult(
                good=False, says=f"{str(error).capitalize()}.", advice="The site's environment sets that."
            )
        case outbound_http.ForbiddenUrl():
            advice = "Who runs the site may allow its network with ACME_WEBHOOK_NETWORKS."
            return ChannelTestResult(good=False, says=f"The address {error}.", advice=advice)
        case httpx.TimeoutException():
            says = f"It did not answer within {outbound_http.CALL_TIMEOUT_S:.0f} seconds."
            return ChannelTestResult(good=False, says=says, advice="Is a firewall between it and us?")
        case httpx.ConnectError():
            return ChannelTestResult(
                good=False, says="Nobody listens there, or its certificate is not valid.", advice=str(error)
            )
        case _:
            return ChannelTestResult(
                good=False, says="It could not be sent.", advice=f"{type(error).__name__}: {error}"[:300]
            )
