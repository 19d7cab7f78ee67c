"""Client for any OpenAI-compatible endpoint (vLLM, Ollama, a cloud service), within a budget of time and money.

Only text that `masking` has cleaned is sent. Every server failure becomes an `AgentError` with a sentence, and the
caller abstains: a verdict never waits for a model. The answer is read in pieces against a deadline and a size limit, so
a server that sends too slowly or too much cannot block a worker.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from acmeweb.common.errors import MalformedResponse
from failures.agent import answers, masking, prompts
from failures.agent.answers import ModelVote, VoteResult
from failures.agent.prompts import Precedent

MAX_RESPONSE_BYTES = 256 << 10
MIN_CALL_S = 0.2

Clock = Callable[[], float]


class AgentError(Exception):
    """There is no answer. The message is a sentence for the user."""


class ModelRequestRejected(AgentError):
    """The server rejected the request (4xx). Repeating it would not help."""


@dataclass(frozen=True, kw_only=True)
class ModelEndpoint:
    url: str  # up to and with /v1
    model: str
    key: str = ""
    votes: int = 3
    call_s: float = 60
    budget_s: float = 120  # for all votes of one failure
    budget_cost: float = 0.25  # in the currency of the prices below; ignored if the prices are 0
    price_in: float = 0  # per million tokens
    price_out: float = 0

    @property
    def configured(self) -> bool:
        return bool(self.url and self.model)


@dataclass
class ModelBudget:
    """The time and money left for one failure. `clock` is monotonic, not the time of day."""

    endpoint: ModelEndpoint
    clock: Clock = time.monotonic

    def __post_init__(self) -> None:
        self._until = self.clock() + self.endpoint.budget_s
        self.spent = 0.0

    def remaining_s(self) -> float:
        return self._until - self.clock()

    def exhaustion_reason(self) -> str:
        if self.remaining_s() < MIN_CALL_S:
            return "The time budget for the model is used up."
        return "The cost budget for the model is used up." if self.spent >= self.endpoint.budget_cost > 0 else ""

    def add_usage(self, usage: object) -> None:
        if isinstance(usage, dict):
            tokens_in, tokens_out = (usage.get(name, 0) for name in ("prompt_tokens", "completion_tokens"))
            if all(isinstance(count, int) and count >= 0 for count in (tokens_in, tokens_out)):
                self.spent += (tokens_in * self.endpoint.price_in + tokens_out * self.endpoint.price_out) / 1e6


@dataclass
class Agent:
    """Sends the two kinds of requests: `failure` asks for a verdict on a bundle, `filters` for filter rules."""

    endpoint: ModelEndpoint
    client: httpx.Client
    clock: Clock = time.monotonic

    def failure(
        self, bundle: str, precedents: Sequence[Precedent] = (), hosts: frozenset[str] = frozenset()
    ) -> VoteResult:
        safe = masking.mask_bundle(bundle, hosts)
        known = [_mask_precedent(precedent, hosts) for precedent in precedents]
        messages = prompts.diagnosis_messages(safe.text, known, f"=={secrets.token_hex(8)}==")
        budget = ModelBudget(self.endpoint, self.clock)
        votes, errors = self._collect_votes(messages, safe.numbers, budget)
        outcome = answers.majority_result(votes, self.endpoint.votes, errors)
        return VoteResult(**{**outcome.__dict__, "why": safe.restore_names(outcome.why)})

    def _collect_votes(
        self, messages: list[dict[str, str]], shown: frozenset[int], budget: ModelBudget
    ) -> tuple[list[ModelVote], list[str]]:
        votes: list[ModelVote] = []
        errors: list[str] = []
        for vote in range(self.endpoint.votes):
            if why := budget.exhaustion_reason():
                errors.append(why)
                break
            try:
                votes.append(answers.parse_vote(self.ask(messages, answers.VERDICT_SCHEMA, budget, vote), shown))
            except MalformedResponse as error:
                errors.append(str(error))
            except AgentError as error:
                errors.append(str(error))
                break  # the server is down or rejects us: the other votes would fail in the same way
        return votes, errors

    def filters(self, shapes: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """(pattern, example) of proposed filter rules. The caller must check each one before it may drop a line."""
        safe = masking.mask_bundle("\n".join(shapes))
        messages = prompts.filter_messages(safe.text.split("\n"), f"=={secrets.token_hex(8)}==")
        return answers.parse_filter_rules(
            self.ask(messages, answers.FILTER_SCHEMA, ModelBudget(self.endpoint, self.clock))
        )

    def ask(self, messages: list[dict[str, str]], schema: dict[str, Any], budget: ModelBudget, vote: int = 0) -> str:
        """The text of one answer. The first vote uses temperature 0; the others vary by seed and temperature."""
        body = {
            "model": self.endpoint.model, "messages": messages, "max_tokens": 1200, "seed": vote,
            "temperature": 0.0 if vote == 0 else 0.7,
            "response_format": {"type": "json_schema",
                                "json_schema": {"name": "answer", "strict": True, "schema": schema}},
        }  # fmt: skip
        try:
            reply = self._post(body, budget)
        except ModelRequestRejected:  # older servers do not support schemas; the answer is checked here in any case
            reply = self._post({**body, "response_format": {"type": "json_object"}}, budget)
        budget.add_usage(reply.get("usage"))
        return _answer_text(reply)

    def _post(self, body: dict[str, Any], budget: ModelBudget) -> dict[str, Any]:
        timeout_s = max(MIN_CALL_S, min(self.endpoint.call_s, budget.remaining_s()))
        until = self.clock() + timeout_s
        headers = {"Authorization": f"Bearer {self.endpoint.key}"} if self.endpoint.key else {}
        url = f"{self.endpoint.url.rstrip('/')}/chat/completions"
        try:
            with self.client.stream("POST", url, json=body, headers=headers, timeout=timeout_s) as response:
                data = self._read_body(response, until)
        except httpx.TimeoutException:
            raise AgentError(f"The model did not answer within {timeout_s:.0f} s.") from None
        except httpx.HTTPError as error:
            raise AgentError(f"The model server cannot be reached: {type(error).__name__}.") from None
        if 400 <= response.status_code < 500:
            raise ModelRequestRejected(f"The model server rejected the request with status {response.status_code}.")
        if response.status_code != 200:
            raise AgentError(f"The model server answered with status {response.status_code}.")
        try:
            reply = json.loads(data)
        except (ValueError, RecursionError):
            raise MalformedResponse("The response of the model server is not valid JSON.") from None
        if not isinstance(reply, dict):
            raise MalformedResponse("The response of the model server is not a JSON object.")
        return reply

    def _read_body(self, response: httpx.Response, until: float) -> bytes:
        data = b""
        for piece in response.iter_bytes():
            data += piece
            if len(data) > MAX_RESPONSE_BYTES:
                raise MalformedResponse(f"The response is larger than {MAX_RESPONSE_BYTES >> 10} KiB.")
            if self.clock() > until:
                raise AgentError("The response of the model server took too long.")
        return data


def _answer_text(reply: dict[str, Any]) -> str:
    try:
        text = reply["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise MalformedResponse("The response of the model server has no message.") from None
    if not isinstance(text, str):
        raise MalformedResponse("The response of the model server has no text.")
    return text


def _mask_precedent(precedent: Precedent, hosts: frozenset[str]) -> Precedent:
    words = masking.mask_bundle(precedent.words, hosts).text.replace("\n", " ")
    cured = masking.mask_bundle(precedent.cured_by, hosts).text.replace("\n", " ")
    return Precedent(root_cause=precedent.root_cause, cured_by=cured, words=words, similarity=precedent.similarity)
