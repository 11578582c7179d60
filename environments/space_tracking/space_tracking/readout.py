"""Three ways to read a prompt: an endpoint's next-token log-probabilities, a local model's, or a generated reply.

    offer = await choose_endpoint(client, "embedded", settings)         # None: there is nothing but generating
    await read_endpoint(Endpoint(client, "embedded", offer), prompt)    # Readout
    await read_local("embedded", prompt)                                # Readout
    await read_reply(client, "some-chat-model", prompt)                 # Generated

    score("embedded", batch_size=16, env_args={}).format_text()         # a whole corpus, `mindscope score`

The first two agree to the rounding of the numbers served; the third is another measurement.
"""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mindscope.endpoint import ROUTES, Endpoint, EndpointError, Offer, Via, probe_once, public_url
from mindscope.errors import MindscopeError
from openai import AsyncOpenAI

from space_tracking.corpus import COLOURS
from space_tracking.judgement import Generated, Readout
from space_tracking.paradigm import Settings, generate_prompt, neutral_prompt, trials

if TYPE_CHECKING:
    from mindscope.whitebox.model import LocalModel, Progress

    from space_tracking.validation import Validation

MultiToken = Literal["refuse", "sequence"]

_SHOWN_TOKENS = 3
_said: set[str] = set()


async def choose_endpoint(
    client: AsyncOpenAI, model: str, settings: Settings, *, routes: Sequence[Via] = ROUTES
) -> Offer | None:
    """The way to `model`'s log-probabilities, by `settings.route`; None where `auto` falls back on generating. Says on
    stderr, once for each endpoint and model, what was chosen.

    Raises EndpointError where the settings need log-probabilities and there are none.
    """
    if settings.route == "generate":
        return None
    offer = await probe_once(client, model, routes)
    if settings.route == "endpoint" or settings.prior or settings.reward == "logprob":
        Endpoint(client, model, offer)  # raises where there is no way in
    where = f"{public_url(client)}, model {model}"
    if offer.via is None:
        _say(
            f"{where}: no next-token log-probabilities ({'; '.join(offer.notes)}). The model is asked to name the "
            "colour instead: another measurement, not to be mixed with the others"
        )
        return None
    _say(f"{where}: next-token log-probabilities by {offer.via}, lists of up to {offer.longest} tokens")
    return offer


async def read_endpoint(endpoint: Endpoint, prompt: str) -> Readout:
    """What the endpoint tells of the six colours after `prompt`. A colour it does not tell has a bound."""
    first, found = await endpoint.logprobs_of(prompt, [f" {colour}" for colour in COLOURS])
    values = {colour: found[f" {colour}"] for colour in COLOURS}
    return Readout(
        route="endpoint",
        via=endpoint.via,
        scoring="first_token",
        logprobs={colour: value.logprob for colour, value in values.items() if value.logprob is not None},
        at_most={colour: value.at_most for colour, value in values.items() if value.at_most is not None},
        how={colour: value.how for colour, value in values.items()},
        top=first.top,
    )


async def read_local(source: str, prompt: str, multi_token: MultiToken = "refuse") -> Readout:
    """What the local model at `source` finds after `prompt`; the event loop goes on meanwhile. Raises MindscopeError
    as `local_readouts` does."""
    from mindscope.whitebox.model import LocalModel

    model = await asyncio.to_thread(LocalModel.load, source)
    [(_, (readout,))] = await model.run_async(
        lambda: list(local_readouts(model, [prompt], batch_size=1, multi_token=multi_token))
    )
    return readout


async def read_reply(client: AsyncOpenAI, model: str, prompt: str, **sampling: Any) -> Generated:
    """What a chat model answers when asked for the colour; raises EndpointError when it answers nothing at all."""
    response = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": generate_prompt(prompt)}], **sampling
    )
    if not response.choices:
        raise EndpointError("the endpoint's answer holds no choice")
    choice = response.choices[0]
    return Generated(reply=choice.message.content, finish_reason=choice.finish_reason)


def local_readouts(
    model: "LocalModel",
    prompts: Sequence[str],
    *,
    batch_size: int,
    multi_token: MultiToken = "refuse",
    progress: "Progress | None" = None,
) -> Iterator[tuple[list[int], list[Readout]]]:
    """The prompts' indices and readouts, a batch at a time, in the order of their tokens.

    Prompts that begin alike share the computation of what they share. Raises MindscopeError when a colour is more than
    one token after some prompt, unless `multi_token` is `sequence`: then, for all prompts, the log-probability of a
    colour is the sum over its tokens.
    """
    import torch
    from mindscope.whitebox.packing import shared_prefix_batches
    from mindscope.whitebox.scoring import score_continuations

    ids = model.run(lambda: colour_ids(model.tokenizer, prompts))
    in_sequence = any(len(tokens) > 1 for each in ids for tokens in each.values())
    if in_sequence and multi_token == "refuse":
        raise MindscopeError(_several_tokens(model, ids))
    for indices, logprobs in shared_prefix_batches(model, prompts, batch_size=batch_size, progress=progress):
        tops = logprobs.argmax(-1).tolist()
        if in_sequence:
            scores = score_continuations(
                model,
                [prompts[i] for i in indices for _ in COLOURS],
                [f" {colour}" for _ in indices for colour in COLOURS],
                batch_size=batch_size,
            )
            values = torch.tensor([one.logprob for one in scores]).reshape(len(indices), len(COLOURS))
        else:
            wanted = torch.tensor([[ids[i][colour][0] for colour in COLOURS] for i in indices])
            values = logprobs.gather(1, wanted)
        yield (
            indices,
            [
                Readout(
                    route="whitebox",
                    via=str(model.source),
                    scoring="sequence" if in_sequence else "first_token",
                    logprobs=dict(zip(COLOURS, row, strict=True)),
                    how=dict.fromkeys(COLOURS, "vocabulary"),
                    top=str(model.tokenizer.decode([top])),
                    token_ids=ids[i],
                )
                for i, row, top in zip(indices, values.tolist(), tops, strict=True)
            ],
        )


def colour_ids(tokenizer: Any, prompts: Sequence[str]) -> list[dict[str, tuple[int, ...]]]:
    """For each prompt the ids that each colour adds to it.

    Raises MindscopeError when a colour changes the prompt's own last tokens, so that it has no probability after it.
    """
    before = tokenizer(list(prompts)).input_ids
    after = {colour: tokenizer([f"{prompt} {colour}" for prompt in prompts]).input_ids for colour in COLOURS}
    found = []
    for i, ids in enumerate(before):
        for colour in COLOURS:
            if after[colour][i][: len(ids)] != ids:
                raise MindscopeError(
                    f"with this tokenizer {colour!r} joins the last word of {prompts[i][-40:]!r}, so it has no "
                    "probability after that prompt; the model can't be read on this corpus"
                )
        found.append({colour: tuple(after[colour][i][len(ids) :]) for colour in COLOURS})
    return found


def score(
    model: str,
    *,
    batch_size: int = 16,
    env_args: Mapping[str, object] | None = None,
    progress: "Progress | None" = None,
    output: Path | None = None,
    resume: bool = False,
    revision: str | None = None,
    dtype: str = "float32",
    device: str = "cpu",
) -> "Validation":
    """Reads every row of `env_args` out of a local model and draws up its table, priors included.

    With `output`, each batch is kept in that folder as soon as it is read, and `resume` goes on where a stopped run
    of the same settings left off. Raises MindscopeError when the model can't be had, a colour is several tokens (see
    `Settings.multi_token`), or the folder holds another run.
    """
    from mindscope.whitebox.model import LocalModel

    from space_tracking.runs import ReadoutFolder, local_run, manifest
    from space_tracking.validation import validate

    settings = Settings.parse({"prior": True, **(env_args or {}), "route": "whitebox", "whitebox_model": model})
    rows = [row for trial in trials(settings) for row in trial.rows]
    prompts = [row.prompt for row in rows]
    if settings.prior:
        prompts += [prompt for row in rows if (prompt := neutral_prompt(row)) is not None]
    found: dict[str, Readout] = {}
    folder = None
    if output is not None:
        about = manifest(model, settings, {"revision": revision, "dtype": dtype, "device": device})
        folder = ReadoutFolder.open(output, about, resume=resume)
        found = folder.readouts()
    wanted = [prompt for prompt in dict.fromkeys(prompts) if prompt not in found]
    total, done = len(wanted) + len(found), len(found)
    if wanted:
        local = LocalModel.load(model, revision=revision, dtype=dtype, device=device)
        for indices, readouts in local_readouts(local, wanted, batch_size=batch_size, multi_token=settings.multi_token):
            batch = {wanted[i]: readout for i, readout in zip(indices, readouts, strict=True)}
            if folder is not None:
                folder.append(batch)
            found |= batch
            done += len(batch)
            if progress is not None:
                progress(done, total)
    return validate([local_run(model, rows, found)])


def _several_tokens(model: "LocalModel", ids: Sequence[Mapping[str, tuple[int, ...]]]) -> str:
    cases = {
        f"{colour!r} is {' + '.join(repr(model.tokenizer.decode([token])) for token in tokens)}": None
        for each in ids
        for colour, tokens in each.items()
        if len(tokens) > 1
    }
    return (
        f"colours of more than one token with the tokenizer of {model.source}: "
        f"{', '.join(list(cases)[:_SHOWN_TOKENS])}. A first token is not the colour, so it is not scored; "
        "multi_token='sequence' scores whole words instead, and labels them so"
    )


def _say(line: str) -> None:
    if line not in _said:
        _said.add(line)
        print(f"space_tracking: {line}", file=sys.stderr, flush=True)
