"""Asks a model about every item of a benchmark, many calls at once, and keeps each answer as it comes.

    plan = Plan(wording=Wording(form="coherence"), model=Model(provider="local", model_id="m"), n_samples=5)
    asker = VoteAsker(client, plan)
    run = asyncio.run(elicit(plan, benchmark, asker, Path("run.jsonl"), concurrency=32))
    eta, warnings = rebuild(Path("run.jsonl"), benchmark)

The log is the run (see `runlog`). A process that is killed loses no answered call, and `elicit` on the same log asks
only for what is missing or failed. A call fails when it keeps failing after the client's retries, or brings nothing
to read; it is logged as failed and never as a verdict. A key that is refused, or a model that is not there, stops
the run at once.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from mindscope.endpoint import ROUTES, Endpoint, Via, probe
from mindscope.errors import MindscopeError
from openai import AsyncOpenAI, AuthenticationError, NotFoundError, OpenAIError, PermissionDeniedError
from openai.types import Completion, CompletionChoice
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, ConfigDict, Field

from infereval_env.elicitation import STOP, Prompt, Wording, check_askable, compose
from infereval_env.formats import (
    Benchmark,
    EndorsementConfig,
    Item,
    Model,
    Sample,
    Setup,
    benchmark_hash,
    elicitation_hash,
    reference_hash,
)
from infereval_env.labels import label_of, label_shares, most_probable, read_prompt
from infereval_env.readings import voted
from infereval_env.runlog import (
    Event,
    ItemCompleted,
    ItemStarted,
    RunFinished,
    RunLog,
    RunStarted,
    SampleCompleted,
    SampleFailed,
    check_continues,
    read_progress,
    sample_of,
)
from infereval_env.verdicts import Parsed, TieBreak, Verdict, parse

Verdicts = Literal["vote", "logprob"]
Progress = Callable[[int, int], None]
"""Takes how many calls are done and how many there are."""

COMPLETION_TOKENS = 12
"""Longest reply of a base model: a label."""
_SPACE_MARKS = " \u2581\u0120"
"""How tokenizers write a space at the beginning of a word."""
_HOPELESS = (AuthenticationError, PermissionDeniedError, NotFoundError)


class Plan(BaseModel):
    """One run: what is asked, of which model, how often, and how replies become verdicts."""

    model_config = ConfigDict(frozen=True)

    wording: Wording
    model: Model
    verdicts: Verdicts = "vote"
    n_samples: int = Field(5, ge=1)
    """Calls an item; label probabilities need one."""
    tie_break: TieBreak = "abstain"
    parser: Literal["strict", "first_label"] = "strict"
    split: Literal["all", "train", "test"] = "all"


class Answer(NamedTuple):
    """What one call brought. `probabilities` are set when the verdict comes from them."""

    text: str
    finish_reason: str | None = None
    probabilities: dict[Verdict, float] | None = None
    request_id: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None


class NoAnswerError(MindscopeError):
    """The call went through and brought nothing that could hold a verdict."""


class Asker(Protocol):
    async def __call__(self, prompt: Prompt, sample_index: int) -> Answer: ...


class VoteAsker:
    """One reply a call. A seed is counted up by sample, as one seed for all would give one reply n times."""

    def __init__(self, client: AsyncOpenAI, plan: Plan) -> None:
        self._client = client
        self._completion = plan.wording.style == "completion"
        params = plan.model.params.model_dump(exclude_none=True)
        self._seed = params.pop("seed", None)
        params["stop"] = list(params["stop"]) or (list(STOP) if self._completion else None)
        self._options = {name: value for name, value in params.items() if value is not None}
        self._options["model"] = plan.model.model_id

    async def __call__(self, prompt: Prompt, sample_index: int) -> Answer:
        options: dict[str, Any] = dict(self._options)
        if self._seed is not None:
            options["seed"] = self._seed + sample_index
        # `post` is what the client's typed methods call, without a quarter of their time.
        reply: Completion | ChatCompletion
        if self._completion:
            body = {"prompt": prompt.text, **options}
            reply = await self._client.post("/completions", cast_to=Completion, body=body)
        else:
            body = {"messages": prompt.messages, **options}
            reply = await self._client.post("/chat/completions", cast_to=ChatCompletion, body=body)
        if not reply.choices:
            raise NoAnswerError("the answer holds no choice")
        choice, usage = reply.choices[0], reply.usage
        text = choice.text if isinstance(choice, CompletionChoice) else choice.message.content
        if not text or not text.strip():
            raise NoAnswerError(f"the reply is empty (finish reason {choice.finish_reason})")
        details = usage.completion_tokens_details if usage else None
        return Answer(
            text,
            choice.finish_reason,
            request_id=reply.id,
            input_tokens=usage.prompt_tokens if usage else None,
            output_tokens=usage.completion_tokens if usage else None,
            reasoning_tokens=details.reasoning_tokens if details else None,
        )


class LabelAsker:
    """One token a call: how probable each label is as the next thing said. With an `endpoint` the whole prompt is
    sent verbatim, without one it is a chat, and the first token of the reply is read."""

    def __init__(self, client: AsyncOpenAI, plan: Plan, endpoint: Endpoint | None) -> None:
        self._client = client
        self._plan = plan
        self._endpoint = endpoint

    async def __call__(self, prompt: Prompt, sample_index: int) -> Answer:
        model, form = self._plan.model.model_id, self._plan.wording.form
        shares, reply = await read_prompt(self._client, model, prompt, form, self._endpoint)
        return Answer(reply.chosen, probabilities=shares, input_tokens=reply.prompt_tokens, output_tokens=1)


class WhiteboxAsker:
    """The label probabilities of a local model, from its whole vocabulary."""

    def __init__(self, source: str, plan: Plan) -> None:
        from mindscope.whitebox.model import LocalModel

        self._model = LocalModel.load(source)
        self._form = plan.wording.form
        pieces = self._model.run(lambda: self._model.tokenizer.get_vocab())
        marked = {i: piece for piece, i in pieces.items() if label_of(piece.lstrip(_SPACE_MARKS), self._form)}
        self._labels = [(i, self._decoded(i)) for i in sorted(marked) if i < self._model.vocab_size]

    async def __call__(self, prompt: Prompt, sample_index: int) -> Answer:
        logprobs = await self._model.run_async(lambda: self._model.next_token_logprobs([prompt.text])[0])
        shares = label_shares([(token, float(logprobs[i])) for i, token in self._labels], self._form)
        return Answer(self._decoded(int(logprobs.argmax())), probabilities=shares, output_tokens=1)

    def _decoded(self, token_id: int) -> str:
        return str(self._model.run(lambda: self._model.tokenizer.decode([token_id])))


async def make_asker(client: AsyncOpenAI, plan: Plan, *, routes: Sequence[Via] = ROUTES) -> Asker:
    """How `plan` is to be asked of an endpoint. Raises EndpointError when it needs log-probabilities that the
    endpoint does not give."""
    if plan.verdicts == "vote":
        return VoteAsker(client, plan)
    if plan.wording.style == "chat":
        return LabelAsker(client, plan, None)
    offer = await probe(client, plan.model.model_id, routes)
    return LabelAsker(client, plan, Endpoint(client, plan.model.model_id, offer))


def started_event(plan: Plan, benchmark: Benchmark, n_items: int, run_id: str) -> RunStarted:
    """The event that opens a run: everything that decides what is asked and how it is read."""
    wording = plan.wording
    return RunStarted(
        **_stamp(run_id, benchmark),
        benchmark_hash=benchmark_hash(benchmark),
        n_items=n_items,
        provider=plan.model.provider,
        model_id=plan.model.model_id,
        params=plan.model.params,
        endorsement_config=EndorsementConfig(
            n_samples=plan.n_samples,
            tie_break=plan.tie_break,
            verification_prompt_id=f"{wording.template_id}:{wording.form}",
            question_form=wording.form,
            coherence_frame_id=wording.frame_id,
        ),
        template_id=wording.template_id,
        coherence_frame_id=wording.frame_id,
        strip_tex=not wording.keep_tex,
        paraphrase_variant=wording.variant,
        setup=Setup(
            template_id=wording.template_id,
            verdicts=plan.verdicts,
            parser=plan.parser,
            strip_tex=not wording.keep_tex,
            elicitation_hash=elicitation_hash(benchmark),
            reference_hash=reference_hash(benchmark),
            split=plan.split,
        ),
    )


class Tally(NamedTuple):
    """Calls of this process: how many were answered, how many failed, and how many an earlier one had made."""

    answered: int
    failed: int
    kept: int
    seconds: float


async def elicit(
    plan: Plan,
    benchmark: Benchmark,
    asker: Asker,
    log_path: Path,
    *,
    items: Sequence[Item] | None = None,
    concurrency: int = 32,
    run_id: str | None = None,
    secret: str | None = None,
    progress: Progress | None = None,
) -> Tally:
    """Make every call of `plan` that `log_path` does not hold an answer to, at most `concurrency` at a time.

    `items` are those to ask, all when left out; `secret` is cut out of error texts. Raises MindscopeError when an
    item cannot be asked so, when the log is of another setup, and when the endpoint refuses the key or the model;
    what was answered until then is in the log.
    """
    asked = list(benchmark.items if items is None else items)
    check_askable(plan.wording, benchmark, asked)
    prompts = {item.id: compose(plan.wording, benchmark, item) for item in asked}
    begun: set[str] = set()
    held: dict[str, dict[int, Sample]] = {}
    with RunLog(log_path) as log:
        if log_path.stat().st_size:
            before = read_progress(log_path, run_id)
            run_id, begun, held = before.started.run_id, before.begun, before.answered
            check_continues(before.started, started_event(plan, benchmark, len(asked), run_id), log_path)
        run_id = run_id or f"{benchmark.id}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        log.append(started_event(plan, benchmark, len(asked), run_id))
        run = _Run(plan, benchmark, asker, log, run_id, prompts, begun, held, secret)
        return await run.make(
            [(item, index) for item in asked for index in range(plan.n_samples)], concurrency, progress
        )


class _Run:
    """The calls of one process, and the events they leave."""

    def __init__(
        self,
        plan: Plan,
        benchmark: Benchmark,
        asker: Asker,
        log: RunLog,
        run_id: str,
        prompts: dict[str, Prompt],
        begun: set[str],
        held: dict[str, dict[int, Sample]],
        secret: str | None,
    ) -> None:
        self._plan, self._benchmark, self._asker, self._log = plan, benchmark, asker, log
        self._run_id, self._prompts, self._begun, self._held, self._secret = run_id, prompts, begun, held, secret
        self._written = asyncio.Event()
        self._failed = 0
        prompt = benchmark.verification_prompt
        self._pattern = prompt.parse_regex if prompt and plan.wording.template == "benchmark" else None

    async def make(self, calls: list[tuple[Item, int]], concurrency: int, progress: Progress | None) -> Tally:
        missing = [(item, index) for item, index in calls if index not in self._held.get(item.id, {})]
        left = {item.id: 0 for item, _ in calls}
        for item, _ in missing:
            left[item.id] += 1
        began, done, queue = time.monotonic(), 0, iter(missing)

        async def work() -> None:
            nonlocal done
            for item, index in queue:
                await self._call(item, index)
                left[item.id] -= 1
                if left[item.id] == 0:
                    self._item_completed(item)
                done += 1
                if progress is not None:
                    progress(done, len(missing))

        async with self._synced():
            workers = [asyncio.create_task(work()) for _ in range(min(concurrency, len(missing)))]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
        took = time.monotonic() - began
        self._append(RunFinished(**self._stamp(), n_items=len(left), wall_time_s=round(took, 3)))
        return Tally(len(missing) - self._failed, self._failed, len(calls) - len(missing), took)

    async def _call(self, item: Item, index: int) -> None:
        prompt = self._prompts[item.id]
        if item.id not in self._begun:
            self._begun.add(item.id)
            self._append(self._item_started(item, prompt))
        began = time.monotonic()
        about: dict[str, Any] = {"item_id": item.id, "sample_index": index, "prompt_hash": prompt.hash}
        try:
            answer = await self._asker(prompt, index)
        except _HOPELESS as error:
            raise MindscopeError(
                f"The endpoint refuses the run: {self._public(error)}. What was answered so far is in the log."
            ) from None
        except (OpenAIError, MindscopeError, ValueError) as error:
            self._failed += 1
            self._append(SampleFailed(**self._stamp(), **about, level="ERROR", err=self._public(error)))
            return
        event = self._completed(answer, about, (time.monotonic() - began) * 1000)
        self._held.setdefault(item.id, {})[index] = sample_of(event)
        self._append(event)

    def _completed(self, answer: Answer, about: dict[str, Any], wall_time_ms: float) -> SampleCompleted:
        form = self._plan.wording.form
        if answer.probabilities is not None:
            parsed = Parsed(most_probable(answer.probabilities), "ok")
        else:
            parsed = parse(
                answer.text,
                form,
                finish_reason=answer.finish_reason,
                compat=self._plan.parser == "first_label",
                pattern=self._pattern,
            )
        return SampleCompleted(
            **self._stamp(),
            **about,
            request_id=answer.request_id or f"{self._run_id}:{about['item_id']}:sample-{about['sample_index']}",
            raw_response=answer.text,
            parsed_verdict=parsed.verdict,
            parse_status=parsed.status,
            wall_time_ms=round(wall_time_ms, 3),
            input_tokens=answer.input_tokens,
            output_tokens=answer.output_tokens,
            reasoning_tokens=answer.reasoning_tokens,
            finish_reason=answer.finish_reason,
            label_probabilities=answer.probabilities,
        )

    def _item_started(self, item: Item, prompt: Prompt) -> ItemStarted:
        chat = self._plan.wording.style == "chat"
        return ItemStarted(
            **self._stamp(),
            item_id=item.id,
            premise_ids=item.premises,
            conclusion_ids=item.conclusions,
            prompt_hash=prompt.hash,
            prompt=prompt.user if chat else prompt.text,
            system=prompt.system if chat else None,
            question_form=self._plan.wording.form,
        )

    def _item_completed(self, item: Item) -> None:
        samples = self._held.get(item.id, {}).values()
        tally = voted(samples, self._plan.tie_break, self._plan.n_samples // 2 + 1)
        self._append(ItemCompleted(**self._stamp(), item_id=item.id, **tally._asdict()))

    def _append(self, event: Event) -> None:
        self._log.append(event)
        self._written.set()

    @asynccontextmanager
    async def _synced(self) -> AsyncIterator[None]:
        """Meanwhile, what has been written goes to disk a batch at a time, beside the calls."""

        async def sync() -> None:
            while True:
                await self._written.wait()
                self._written.clear()
                await asyncio.to_thread(self._log.sync)

        syncing = asyncio.create_task(sync())
        try:
            yield
        finally:
            syncing.cancel()
            await asyncio.gather(syncing, return_exceptions=True)

    def _public(self, error: Exception) -> str:
        text = f"{type(error).__name__}: {error}"
        return text.replace(self._secret, "[key]") if self._secret else text

    def _stamp(self) -> dict[str, Any]:
        return _stamp(self._run_id, self._benchmark)


def _stamp(run_id: str, benchmark: Benchmark) -> dict[str, Any]:
    return {
        "ts": datetime.now(UTC),
        "run_id": run_id,
        "benchmark_id": benchmark.id,
        "framework_version": _VERSION,
    }


_VERSION = f"infereval-env {version('infereval-env')}"
