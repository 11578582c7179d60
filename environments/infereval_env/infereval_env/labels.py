"""Label log-probabilities: how probable a model finds each label as the next thing it says.

    shares = label_shares([(" GOOD", -0.3), ("Good", -4.0), (" BAD", -1.6)], "support")    # {"good": 0.76, …}
    shares, reply = await read_labels(lister, "support", longest=1000)     # one call, or two

A label counts by its first token: every token that is a whole label (in any case, with or without a space) or the
beginning, two letters or more, of exactly one label as it was asked for, in capitals. The rest of the probability
went to other answers; 1 less the sum is that unparseable mass, which nothing here hides.

A list of the most probable tokens may lack a label. It then has less probability than the list's bound, which is
small enough to be called 0 (below 0.01) or the call has failed: unknown is not 0.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from mindscope.endpoint import SHORT_LIST, Endpoint, EndpointError, NextToken
from openai import AsyncOpenAI

from infereval_env.elicitation import Prompt
from infereval_env.verdicts import LABELS, VERDICTS, QuestionForm, Verdict

LARGEST_UNLISTED = 0.01
"""Probability that may be missing from a label without the call counting as failed."""
_FEWEST_LETTERS = 2
CHAT_LIST = 20
"""Tokens listed by chat endpoints: as many as OpenAI and vLLM give."""

Lister = Callable[[int], Awaitable[NextToken]]
"""Takes how many of the most probable next tokens to list."""


def label_of(token: str, form: QuestionForm) -> Verdict | None:
    """The verdict that a reply beginning with `token` declares, None where the token does not decide it."""
    bare = token.strip()
    labels = LABELS[form]
    if bare.upper() in labels and bare.isascii():
        return labels[bare.upper()]
    begun = [verdict for label, verdict in labels.items() if label.startswith(bare)]
    return begun[0] if len(bare) >= _FEWEST_LETTERS and len(begun) == 1 else None


def label_shares(logprobs: Iterable[tuple[str, float]], form: QuestionForm) -> dict[Verdict, float]:
    """The probability of each verdict's label, from next tokens and their log-probabilities (nats)."""
    found: dict[Verdict, list[float]] = {verdict: [] for verdict in VERDICTS}
    for token, logprob in logprobs:
        verdict = label_of(token, form)
        if verdict is not None:
            found[verdict].append(math.exp(logprob))
    return {verdict: min(math.fsum(each), 1.0) for verdict, each in found.items()}


def most_probable(shares: Mapping[Verdict, float]) -> Verdict:
    """The verdict with the largest share; a tie is an abstention."""
    top = max(shares.values())
    tied = [verdict for verdict in VERDICTS if shares[verdict] == top]
    return tied[0] if len(tied) == 1 else "abstain"


async def read_prompt(
    client: AsyncOpenAI, model: str, prompt: Prompt, form: QuestionForm, endpoint: Endpoint | None
) -> tuple[dict[Verdict, float], NextToken]:
    """The label probabilities after a prompt: sent verbatim to an `endpoint`, or without one as a chat, of whose reply
    the first token is read. Raises OpenAIError and EndpointError."""

    async def listed(k: int) -> NextToken:
        if endpoint is not None:
            return await endpoint.next_token(prompt.text, k)
        return await first_reply_token(client, model, prompt.messages, k)

    return await read_labels(listed, form, endpoint.longest if endpoint else CHAT_LIST)


async def read_labels(lister: Lister, form: QuestionForm, longest: int) -> tuple[dict[Verdict, float], NextToken]:
    """The label probabilities from one call, or two where the first list lacks a label and `longest` allows more.

    Raises EndpointError when a label is in neither list and might be as probable as `LARGEST_UNLISTED`.
    """
    reply = await lister(min(SHORT_LIST, longest))
    shares = label_shares(reply.logprobs.items(), form)
    if reply.k < longest and _unknown(shares, reply):
        reply = await lister(longest)
        shares = label_shares(reply.logprobs.items(), form)
    if unknown := _unknown(shares, reply):
        raise EndpointError(
            f"the {reply.k} most probable tokens hold no label for {', '.join(unknown)}, which may still have a "
            f"probability of {math.exp(reply.at_most):.2f}; ask a server that lists more tokens"
        )
    return shares, reply


def _unknown(shares: Mapping[Verdict, float], reply: NextToken) -> list[Verdict]:
    if math.exp(reply.at_most) < LARGEST_UNLISTED:
        return []
    return [verdict for verdict, share in shares.items() if share == 0.0]


async def first_reply_token(client: AsyncOpenAI, model: str, messages: list[Any], k: int) -> NextToken:
    """The `k` most probable first tokens of a chat model's reply. Raises OpenAIError, or EndpointError when the
    answer has no log-probabilities."""
    answer = await client.chat.completions.create(
        model=model, messages=messages, max_tokens=1, temperature=0, logprobs=True, top_logprobs=k
    )
    choice = answer.choices[0] if answer.choices else None
    steps = choice.logprobs.content if choice and choice.logprobs else None
    listed: dict[str, float] = {}
    for entry in sorted(steps[0].top_logprobs if steps else [], key=lambda entry: -entry.logprob):
        listed.setdefault(entry.token, min(entry.logprob, 0.0))
    if not steps or not listed:
        raise EndpointError("the answer has no log-probabilities; take verdicts by vote, or another server")
    return NextToken(
        logprobs=listed,
        k=k,
        chosen=steps[0].token,
        chosen_logprob=steps[0].logprob,
        prompt_tokens=answer.usage.prompt_tokens if answer.usage else None,
    )
