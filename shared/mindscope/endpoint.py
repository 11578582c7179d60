"""Next-token log-probabilities from an OpenAI-compatible endpoint, which the evaluation frameworks drop.

    client = AsyncOpenAI(base_url="http://127.0.0.1:8000/v1", api_key="EMPTY")
    offer = await probe(client, "embedded")                  # which way in works here, if any
    endpoint = Endpoint(client, "embedded", offer)
    await endpoint.next_token("The sky is")                  # NextToken: {" blue": -0.7, " grey": -1.9, …}
    await endpoint.logprobs_of("The sky is", [" blue", " mauve"])

A prompt reaches the model verbatim, by one of three ways (`Via`): the completions route, or the chat route with a
switch that `mindscope serve` knows (`template_kwargs`) or with an identity template (`chat_template`, for vLLM
that trusts request templates). `probe` proves that a chat route does not wrap the prompt before it is used.

A list of the k most probable tokens may lack the one asked about. Its log-probability is then unknown, not 0 and
not minus infinity: `logprobs_of` asks for a longer list, then forces the token with `logit_bias` and reads its
value off the answer, and where neither is allowed says which value it can't exceed.

The client does the retries. Failed calls raise `openai.OpenAIError`, useless answers `EndpointError`.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from openai import APIStatusError, AsyncOpenAI
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from mindscope.errors import MindscopeError

Via = Literal["completions", "template_kwargs", "chat_template"]
ROUTES: tuple[Via, ...] = ("completions", "template_kwargs", "chat_template")

SHORT_LIST = 100
"""Tokens in the list first asked for, where so many are allowed."""

_LENGTHS = (1000, SHORT_LIST, 20, 5)
"""Lengths of list that `probe` tries, longest first."""

_NOT_OFFERED = (400, 404, 405, 415, 422, 501)
"""Statuses by which a server says that it has no such route or field. Any other failure says nothing about that."""

_BIAS = 30.0
"""Enough to make any token that matters the first, few enough nats to subtract without loss."""

_ROUNDING = 1e-6
"""Probability that the rounding of served numbers may hide."""

_PROBE = "The colour of the sky is"


class EndpointError(MindscopeError):
    """An answer that arrived and can't be used: it has no log-probabilities, or none that are numbers."""


class NextToken(BaseModel):
    """The most probable tokens after a prompt."""

    model_config = ConfigDict(frozen=True)

    logprobs: dict[str, float]
    """By token text, in nats, the most probable first. Of tokens that are spelt alike, the most probable."""
    k: int
    """How many were asked for."""
    chosen: str
    """The token that the endpoint went on with."""
    chosen_logprob: float
    prompt_tokens: int | None

    @property
    def top(self) -> str:
        """The most probable token."""
        return next(iter(self.logprobs))

    @property
    def at_most(self) -> float:
        """A log-probability that no token outside the list exceeds."""
        left = 1.0 - sum(map(math.exp, self.logprobs.values()))
        return min(*self.logprobs.values(), math.log(max(left, _ROUNDING)))


class TokenLogprob(BaseModel):
    """What an endpoint told about one token after one prompt: a `logprob`, or else a bound and why."""

    model_config = ConfigDict(frozen=True)

    logprob: float | None
    """In nats; None when the endpoint does not tell."""
    at_most: float | None
    """A value that the log-probability can't exceed; None when it is known."""
    how: Literal["listed", "longer_list", "logit_bias", "not_listed", "several_tokens"]
    """Where the value came from, or why there is none. All that give one are exact up to the served rounding."""


class Offer(BaseModel):
    """What an endpoint offers for one model."""

    model_config = ConfigDict(frozen=True)

    via: Via | None
    """The way in to use; None when no next-token log-probabilities are to be had."""
    longest: int
    """Length of the longest list of tokens it gives; 0 without a way in."""
    notes: tuple[str, ...]
    """What each way in answered, a phrase each."""


async def probe(client: AsyncOpenAI, model: str, routes: Sequence[Via] = ROUTES) -> Offer:
    """The first of `routes` that gives log-probabilities after a verbatim prompt. A handful of one-token calls.

    Raises OpenAIError when a call fails in a way that says nothing about what is offered (a refused key, a server
    that is down).
    """
    notes = []
    for via in routes:
        longest, found = await _try(client, model, via)
        notes.append(f"{via}: {found}")
        if longest:
            return Offer(via=via, longest=longest, notes=tuple(notes))
    return Offer(via=None, longest=0, notes=tuple(notes))


async def probe_once(client: AsyncOpenAI, model: str, routes: Sequence[Via] = ROUTES) -> Offer:
    """`probe`, remembered for the life of the process; many that ask at once wait for one answer."""
    key = (str(client.base_url), model, tuple(routes))
    async with _asking[id(asyncio.get_running_loop()), key]:
        if key not in _known:
            _known[key] = await probe(client, model, routes)
    return _known[key]


class Endpoint:
    """One model behind an endpoint, reached in the way that `offer` names."""

    def __init__(self, client: AsyncOpenAI, model: str, offer: Offer, *, server: AsyncOpenAI | None = None) -> None:
        """`server` is the endpoint itself where `client` reaches it through a proxy that passes chat only.

        Raises EndpointError when the offer has no way in.
        """
        if offer.via is None:
            raise EndpointError(
                f"{public_url(client)} gives no next-token log-probabilities for {model!r} "
                f"({'; '.join(offer.notes)}); serve the model with `mindscope serve` or vLLM, or read a local model"
            )
        self.client = client
        self.model = model
        self._server = server or client
        self.via: Via = offer.via
        self.longest = offer.longest
        self._tokenizes = True

    async def next_token(self, prompt: str, k: int = SHORT_LIST, bias: Mapping[int, float] | None = None) -> NextToken:
        """The `k` most probable tokens after `prompt`; `bias` is added to the logits of token ids before one is
        chosen, and on some servers before they are listed."""
        return await _ask(self.client, self.model, self.via, [prompt], min(k, self.longest), bias)

    async def logprobs_of(self, prompt: str, tokens: Sequence[str]) -> tuple[NextToken, dict[str, TokenLogprob]]:
        """The first list after `prompt`, and what is known of each of `tokens` (their texts, as `" blue"`).

        One call when all are in the first list, two when a longer one has them, one more for each still missing
        where the server also tells its token ids.
        """
        first = await self.next_token(prompt)
        known = _listed(first, tokens, "listed")
        longest = first
        if len(known) < len(tokens) and self.longest > first.k:
            longest = await self.next_token(prompt, self.longest)
            known = _listed(longest, tokens, "longer_list") | known
        for token in tokens:
            if token not in known:
                known[token] = await self._forced(prompt, token, longest)
        return first, {token: known[token] for token in tokens}

    async def token_ids(self, text: str) -> list[int] | None:
        """The ids of `text` without special tokens, from the /tokenize that llama.cpp and vLLM have beside /v1;
        None from a server without one."""
        if not self._tokenizes:
            return None
        root = str(self._server.base_url).rstrip("/").removesuffix("/v1")
        body = {"model": self.model, "content": text, "prompt": text, "add_special_tokens": False}
        try:
            answer = await self._server.post(f"{root}/tokenize", cast_to=object, body=body)
            return _Tokens.model_validate(answer).tokens
        except ValidationError:
            self._tokenizes = False
        except APIStatusError as error:
            if error.status_code not in _NOT_OFFERED:
                raise
            self._tokenizes = False
        return None

    async def _forced(self, prompt: str, token: str, usual: NextToken) -> TokenLogprob:
        """The token's value, read off an answer in which `logit_bias` puts it first.

        Servers list log-probabilities from before the bias (llama.cpp, vLLM) or from after it. How far the other
        tokens have sunk tells which, and by how much: a bias of b gives the token b nats and takes log Z from all.
        """
        unknown = TokenLogprob(logprob=None, at_most=usual.at_most, how="not_listed")
        ids = await self.token_ids(token)
        if ids is None:
            return unknown
        if len(ids) != 1:
            return unknown.model_copy(update={"how": "several_tokens"})
        try:
            forced = await self.next_token(prompt, bias={ids[0]: _BIAS})
        except APIStatusError as error:
            if error.status_code in _NOT_OFFERED:
                return unknown
            raise
        others = [other for other in forced.logprobs if other in usual.logprobs and other != token]
        if forced.chosen != token or not others:
            return unknown
        sunk = usual.logprobs[others[0]] - forced.logprobs[others[0]]
        value = forced.chosen_logprob if abs(sunk) < 0.5 else forced.chosen_logprob - _BIAS + sunk
        if value > usual.at_most + 0.05:
            return unknown
        return TokenLogprob(logprob=value, at_most=None, how="logit_bias")


def public_url(client: AsyncOpenAI) -> str:
    """Where `client` sends its calls, without user name, password and query."""
    url = client.base_url
    return f"{url.scheme}://{url.netloc.decode()}{url.path}".rstrip("/")


def raw_chat_options(via: Via) -> dict[str, JsonValue]:
    """Fields of a chat request that make its last message the whole prompt."""
    if via == "template_kwargs":
        return {"chat_template_kwargs": {"raw": True}}
    return {"chat_template": "{{ messages[-1].content }}"}


def _listed(reply: NextToken, tokens: Iterable[str], how: Literal["listed", "longer_list"]) -> dict[str, TokenLogprob]:
    return {
        token: TokenLogprob(logprob=reply.logprobs[token], at_most=None, how=how)
        for token in tokens
        if token in reply.logprobs
    }


_known: dict[tuple[str, str, tuple[Via, ...]], Offer] = {}
_asking: defaultdict[Any, asyncio.Lock] = defaultdict(asyncio.Lock)


async def _try(client: AsyncOpenAI, model: str, via: Via) -> tuple[int, str]:
    """The longest list that this way in gives, 0 for none, and a phrase about it."""
    refusal = ""
    for k in _LENGTHS:
        try:
            reply = await _ask(client, model, via, [_PROBE], k)
            if via != "completions":
                # An earlier message leaves no trace exactly when the last one is the whole prompt.
                longer = await _ask(client, model, via, [_PROBE * 3, _PROBE], k)
                if reply.prompt_tokens is None or reply.prompt_tokens != longer.prompt_tokens:
                    return 0, "no sign that the prompt arrives verbatim"
        except EndpointError:
            return 0, "no log-probabilities"
        except APIStatusError as error:
            if error.status_code not in _NOT_OFFERED:
                raise
            refusal = f"status {error.status_code}"
            continue
        return k, f"lists of up to {k} tokens"
    return 0, refusal


async def _ask(
    client: AsyncOpenAI,
    model: str,
    via: Via,
    messages: Sequence[str],
    k: int,
    bias: Mapping[int, float] | None = None,
) -> NextToken:
    options: dict[str, Any] = {"model": model, "max_tokens": 1, "temperature": 0}
    if bias:
        options["logit_bias"] = {str(token): value for token, value in bias.items()}
    if via == "completions":
        response = await client.completions.with_raw_response.create(prompt=messages[-1], logprobs=k, **options)
    else:
        response = await client.chat.completions.with_raw_response.create(
            messages=[{"role": "user", "content": message} for message in messages],
            logprobs=True,
            top_logprobs=k,
            extra_body=raw_chat_options(via),
            **options,
        )
    return _read(response.text, k)


class _Listed(BaseModel):
    token: str
    logprob: float


class _Step(_Listed):
    top_logprobs: list[_Listed]


class _ChatShape(BaseModel):
    content: list[_Step]

    def first(self) -> tuple[list[tuple[str, float]], tuple[str, float]]:
        step = self.content[0]
        return [(item.token, item.logprob) for item in step.top_logprobs], (step.token, step.logprob)


class _LegacyShape(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float]]

    def first(self) -> tuple[list[tuple[str, float]], tuple[str, float]]:
        logprob = self.token_logprobs[0]
        return list(self.top_logprobs[0].items()), (self.tokens[0], math.nan if logprob is None else logprob)


class _Choice(BaseModel):
    logprobs: _ChatShape | _LegacyShape


class _Usage(BaseModel):
    prompt_tokens: int


class _Answer(BaseModel):
    choices: list[_Choice]
    usage: _Usage | None = None


class _Tokens(BaseModel):
    tokens: list[int]


def _read(text: str, k: int) -> NextToken:
    """The first position of an answer, whose shape is OpenAI's for completions or for chat; llama.cpp sends the
    latter on both routes."""
    try:
        answer = _Answer.model_validate_json(text)
        listed, chosen = answer.choices[0].logprobs.first()
    except (ValidationError, IndexError):
        raise EndpointError(f"the answer has no log-probabilities where they should be: {text[:200]!r}") from None
    logprobs: dict[str, float] = {}
    for token, logprob in sorted(filter(_is_number, listed), key=lambda item: -item[1]):
        if logprob > 1e-3:
            raise EndpointError(f"the answer gives {token!r} a log-probability of {logprob}, which is above 0")
        logprobs.setdefault(_spelt(token), min(logprob, 0.0))
    if not logprobs or not _is_number(chosen):
        raise EndpointError(f"the answer's log-probabilities are not numbers: {text[:200]!r}")
    return NextToken(
        logprobs=logprobs,
        k=k,
        chosen=_spelt(chosen[0]),
        chosen_logprob=chosen[1],
        prompt_tokens=answer.usage.prompt_tokens if answer.usage else None,
    )


def _is_number(item: tuple[str, float]) -> bool:
    return math.isfinite(item[1])


def _spelt(token: str) -> str:
    """A token's text; some servers send the vocabulary's own mark for a space before a word."""
    return f" {token[1:]}" if token[:1] in ("Ġ", "▁") else token
