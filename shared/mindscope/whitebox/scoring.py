"""How probable a model finds a continuation: the sum over its tokens, each given all before it.

scores = score_continuations(model, ["chair -", "chair -"], [" tiger", " window"])
scores[0].logprob, scores[0].n_tokens, scores[0].first_is_top
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from mindscope.errors import MindscopeError
from mindscope.whitebox.model import LocalModel, Progress, length_batches


@dataclass(frozen=True)
class ContinuationScore:
    """`logprob` in nats, summed over the continuation's `n_tokens`; `first_is_top` says whether no other
    token is more probable than its first right after the prompt."""

    logprob: float
    n_tokens: int
    first_is_top: bool


def continuation_ids(tokenizer: PreTrainedTokenizerBase, prompt: str, continuation: str) -> list[int]:
    """The tokens that `continuation` adds when it follows `prompt`; one id means it is a single token in that
    place.

    Raises MindscopeError when the two do not split there: the tokens of prompt + continuation must start with
    the tokens of the prompt, or neither has a probability of its own.
    """
    before: list[int] = tokenizer(prompt).input_ids
    whole: list[int] = tokenizer(prompt + continuation).input_ids
    if len(whole) <= len(before) or whole[: len(before)] != before:
        raise MindscopeError(
            f"{continuation!r} does not start a token of its own after {prompt[-40:]!r}; move the space "
            "between them to the start of the continuation"
        )
    return whole[len(before) :]


def score_continuations(
    model: LocalModel,
    prompts: Sequence[str],
    continuations: Sequence[str],
    *,
    batch_size: int = 16,
    progress: Progress | None = None,
) -> list[ContinuationScore]:
    """Score `continuations[i]` after `prompts[i]`, in that order.

    One forward pass a batch of pairs of like length; a batch holds logits for `batch_size` x the longest
    continuation in it. Equal to one pair at a time within 1e-4 a token.

    Raises MindscopeError when the two lists differ in length, a prompt is empty, a pair exceeds the context,
    or a continuation does not start on a token of its own (see `continuation_ids`); the pair's index is
    named.
    """
    if len(prompts) != len(continuations):
        raise MindscopeError(f"{len(prompts)} prompts and {len(continuations)} continuations; give as many of each")
    heads = model.rows(prompts)
    tails = model.run(lambda: _tails(model.tokenizer, prompts, continuations))
    # The last token of a continuation is predicted, never read.
    rows = model.rows([head + tail[:-1] for head, tail in zip(heads, tails, strict=True)])

    scores: dict[int, ContinuationScore] = {}
    for indices in length_batches([len(row) for row in rows], batch_size):
        keep = max(len(tails[i]) for i in indices)
        for i, logits in zip(indices, model.last_logits([rows[i] for i in indices], keep), strict=True):
            n = len(tails[i])
            logprobs = logits[-n:].log_softmax(-1)
            each = [logprobs[step, token].item() for step, token in enumerate(tails[i])]
            scores[i] = ContinuationScore(sum(each), n, each[0] == logprobs[0].max().item())
        if progress is not None:
            progress(len(scores), len(rows))
    return [scores[i] for i in range(len(rows))]


def _tails(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], continuations: Sequence[str]) -> list[list[int]]:
    tails = []
    for i, (prompt, continuation) in enumerate(zip(prompts, continuations, strict=True)):
        try:
            tails.append(continuation_ids(tokenizer, prompt, continuation))
        except MindscopeError as error:
            raise MindscopeError(f"pair {i}: {error}") from None
    return tails
