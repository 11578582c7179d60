"""infereval_env for verifiers up to 0.3: `vf-eval infereval_env --provider local -m MODEL -n 50 -r 1`.

With the reward `logprob` the environment makes its own calls with the run's client, as verifiers' clients drop the
log-probabilities of labels that were not chosen. With `quad` a row's rollouts are scored together: give `-r` 2 or more.
"""

import math
import time
from typing import Any

import verifiers.legacy as vf
from datasets import Dataset
from mindscope.endpoint import Endpoint, probe_once
from mindscope.errors import MindscopeError
from mindscope.frameworks.legacy import ScoringError, SingleTurn, StrictRubric, last_reply
from openai import AsyncOpenAI, OpenAIError
from verifiers.legacy.types import Response, ResponseMessage

from infereval_env.elicit import COMPLETION_TOKENS
from infereval_env.elicitation import STOP
from infereval_env.labels import read_prompt
from infereval_env.paradigm import (
    Score,
    Settings,
    Trial,
    quad_rewards,
    quadratic,
    read_verdict,
    score,
    score_labels,
    trials,
)

_NOT_TO_SHOW = {"system", "user", "text", "panel"}


def load_environment(**arguments: Any) -> vf.Environment:
    """The environment over the rows that `arguments` describe (`Settings` lists them).

    Raises `mindscope.errors.MindscopeError` when an argument or the benchmark is not acceptable.
    """
    settings = Settings.parse(arguments)
    rows = trials(settings)
    raw = settings.style == "completion"

    def score_state(state: vf.State) -> Score:
        trial = rows[state["info"]["index"]]
        return (
            score_labels(trial, state["shares"]) if settings.reward == "logprob" else score(trial, *last_reply(state))
        )

    def dataset() -> Dataset:
        return Dataset.from_list(
            [
                {
                    "prompt": _messages(trial),
                    "answer": trial.target,
                    "info": trial.model_dump(exclude=_NOT_TO_SHOW),
                }
                for trial in rows
            ]
        )

    sampling: dict[str, Any] = {"stop": list(STOP), "max_tokens": COMPLETION_TOKENS} if raw else {}
    common: dict[str, Any] = {"dataset": dataset, "eval_dataset": dataset, "sampling_args": sampling or None}
    if settings.reward == "quad":
        return SingleTurn(raw=raw, rubric=QuadRubric(rows, score_state, name="agree"), **common)
    rubric = StrictRubric(score_state, name=settings.reward)
    if settings.reward == "logprob":
        return LabelEnv(rows, raw=raw, rubric=rubric, **common)
    return SingleTurn(raw=raw, rubric=rubric, **common)


class QuadRubric(StrictRubric):
    """Scores the rollouts of one row together. Failed ones are no part of the group."""

    def __init__(self, rows: list[Trial], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rows = rows

    async def score_group(self, states: list[vf.State]) -> None:
        await super().score_group(states)
        group = [state for state in states if state["metrics"]["scored_ok"] == 1.0]
        if not group:
            return
        trial = self._rows[group[0]["info"]["index"]]
        said = [read_verdict(trial, *last_reply(state)) for state in group]
        try:
            rewards, reported = quad_rewards(trial, said), quadratic(trial, said, factor=1.0)
        except ValueError as error:
            for state in group:
                state["error"] = ScoringError(str(error))
                state["reward"] = math.nan
                state["metrics"] = dict.fromkeys(state["metrics"], math.nan) | {"scored_ok": 0.0}
            return
        for state, reward, quadratic_score in zip(group, rewards, reported, strict=True):
            state["reward"] = reward
            state["metrics"] |= {"quad": reward, "quadratic_score": quadratic_score, "n_valid": float(len(group))}


class LabelEnv(SingleTurn):
    """One turn in which the label probabilities are read. Its completion is the token the endpoint went on with."""

    def __init__(self, rows: list[Trial], *, raw: bool, **kwargs: Any) -> None:
        super().__init__(raw=raw, **kwargs)
        self._rows = rows

    async def get_model_response(self, state: vf.State, prompt: Any, **_: Any) -> Response:
        client, trial = state["client"].client, self._rows[state["info"]["index"]]
        if not isinstance(client, AsyncOpenAI):
            raise vf.Error(f"reward='logprob' reads OpenAI-compatible endpoints; {type(client).__name__} is for others")
        try:
            endpoint = None
            if trial.style == "completion":
                endpoint = Endpoint(client, state["model"], await probe_once(client, state["model"]))
            shares, reply = await read_prompt(client, state["model"], trial.prompt_parts, trial.form, endpoint)
        except (OpenAIError, MindscopeError) as error:
            raise vf.ModelError(f"{type(error).__name__}: {error}") from error
        state["shares"] = shares
        message = ResponseMessage(content=reply.chosen, finish_reason=None, is_truncated=False)
        return Response(id="labels", created=int(time.time()), model=state["model"], message=message)


def _messages(trial: Trial) -> list[dict[str, str]]:
    if trial.style == "completion":
        return [{"role": "text", "content": trial.text}]
    return [{"role": "system", "content": trial.system}, {"role": "user", "content": trial.user}]
