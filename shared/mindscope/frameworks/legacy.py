"""What every mindscope environment needs from verifiers up to 0.3: a rubric that cannot lose a failure, and clients
that can send a raw prompt and accept an empty reply.

    rubric = StrictRubric(score, name="recall_correct")
    env = SingleTurn(raw=False, dataset=…, rubric=rubric)

verifiers' own rubric turns an exception in a reward into 0.0 and scores rollouts whose model call failed. Here such
a rollout keeps its error, its reward is NaN and its `scored_ok` is 0.0, so that no average hides it.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol

import verifiers.legacy as vf
from openai import AsyncOpenAI, AuthenticationError, PermissionDeniedError
from verifiers.legacy.clients import Client, OpenAIChatCompletionsClient, OpenAICompletionsClient

from mindscope.frameworks.context import overflows


class Scored(Protocol):
    """What a paradigm's scoring function returns."""

    @property
    def reward(self) -> float: ...

    def metrics(self) -> dict[str, float]: ...


class ScoringError(vf.Error):
    """The model answered, and scoring its answer failed. Not a wrong answer, and not a failed call."""


class TimedOut(vf.Error):
    """The run's time limit ended a rollout. Nothing was answered, so there is nothing to score."""


class StrictRubric(vf.Rubric):
    """Scores a rollout with one function of its state.

    `state["reward"]` is the score's reward, and its metrics join `state["metrics"]` with the reward under `name`
    and `scored_ok` 1.0. When the rollout already failed, or scoring raises, or the reward is not finite, the reward
    and every metric are NaN, `scored_ok` is 0.0 and `state["error"]` says what happened.
    """

    def __init__(self, score: Callable[[vf.State], Scored], *, name: str) -> None:
        super().__init__()
        self._score = score
        self._name = name

    async def score_rollout(self, state: vf.State) -> None:
        await self.score_group([state])

    async def score_group(self, states: list[vf.State]) -> None:
        for state in states:
            self._score_one(state)
        names = {name for state in states for name in state["metrics"]} | {self._name}
        for state in states:
            if state["metrics"]["scored_ok"] == 0.0:
                state["metrics"] = dict.fromkeys(names, math.nan) | {"scored_ok": 0.0}

    def _score_one(self, state: vf.State) -> None:
        state["reward"], state["metrics"] = math.nan, {"scored_ok": 0.0}
        if state.get("timed_out") and state.get("error") is None:
            state["error"] = TimedOut("the rollout ran out of time before it was answered")
        if state.get("error") is not None:
            return
        try:
            score = self._score(state)
            if not math.isfinite(score.reward):
                raise ValueError(f"the reward is {score.reward}, not a finite number")
            metrics = score.metrics()
        except Exception as error:
            state["error"] = ScoringError(f"scoring failed: {type(error).__name__}: {error}")
            return
        state["reward"] = score.reward
        state["metrics"] = metrics | {self._name: score.reward, "scored_ok": 1.0}


class _Prepared(vf.MultiTurnEnv):
    """With `raw` the prompt reaches the model verbatim, whichever client the run uses. A refused key fails the
    rollout, not the run."""

    def __init__(self, *, raw: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._raw = raw

    async def setup_state(self, state: vf.State) -> vf.State:
        state["client"] = _prepared_client(state["client"], raw=self._raw)
        sampling = state["sampling_args"] or {}
        state["sampling_args"] = self.sampling_args | {k: v for k, v in sampling.items() if v is not None}
        return state

    async def get_model_response(self, state: vf.State, prompt: vf.Messages, **kwargs: Any) -> vf.Response:
        try:
            return await super().get_model_response(state, prompt, **kwargs)
        except (AuthenticationError, PermissionDeniedError) as error:
            # verifiers lets these two end the whole evaluation; they are failed calls like any other.
            raise vf.ModelError(str(error)) from error


class SingleTurn(_Prepared, vf.SingleTurnEnv):
    """One prompt, one reply."""


class MultiTurn(_Prepared):
    """A conversation. One that outgrows the model's context stops there and is scored as far as it went."""

    async def get_model_response(self, state: vf.State, prompt: vf.Messages, **kwargs: Any) -> vf.Response:
        try:
            return await super().get_model_response(state, prompt, **kwargs)
        except vf.ModelError as error:
            if overflows(f"{error} {error.__cause__}"):
                raise vf.OverlongPromptError(str(error)) from error
            raise


def last_reply(state: vf.State) -> tuple[str | None, str | None]:
    """The text of the last model turn and its finish reason; raises LookupError where no reply was recorded."""
    if not state["trajectory"]:
        raise LookupError("no reply was recorded")
    message = state["trajectory"][-1]["response"].message
    return message.content, message.finish_reason


class _ChatClient(OpenAIChatCompletionsClient):
    """An empty reply is an answer, not a fault of the provider."""

    async def raise_from_native_response(self, response: Any) -> None:
        await _raise_unless_empty(super().raise_from_native_response, response)


class _CompletionsClient(OpenAICompletionsClient):
    """As `_ChatClient`, for the completions endpoint."""

    async def raise_from_native_response(self, response: Any) -> None:
        await _raise_unless_empty(super().raise_from_native_response, response)


async def _raise_unless_empty(check: Callable[[Any], Any], response: Any) -> None:
    try:
        await check(response)
    except vf.EmptyModelResponseError:
        if response is None or not response.choices:
            raise


def _prepared_client(client: Client, *, raw: bool) -> Client:
    if raw and not isinstance(client.client, AsyncOpenAI):
        raise vf.Error(
            f"style='completion' sends a raw prompt to an OpenAI-compatible completions endpoint, and "
            f"{type(client).__name__} does not talk to one; use --api-client-type openai_completions"
        )
    if raw or type(client) is OpenAICompletionsClient:
        return _wrap(_CompletionsClient, client)
    if type(client) is OpenAIChatCompletionsClient:
        return _wrap(_ChatClient, client)
    return client


def _wrap(kind: type[Client], client: Client) -> Client:
    wrapped = kind(client.client)
    wrapped._config = client.config
    return wrapped
