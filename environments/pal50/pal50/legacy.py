"""pal50 for verifiers up to 0.3: `vf-eval pal50 --provider local -m MODEL -n 10 -r 1`."""

import json
from typing import Any

import verifiers.legacy as vf
from datasets import Dataset
from mindscope.frameworks.legacy import MultiTurn, StrictRubric

from pal50.paradigm import MAX_TOKENS, STOP, Reply, Score, Session, Settings, Trial, score, trials


def load_environment(**arguments: Any) -> vf.Environment:
    """The environment over the participants that `arguments` describe (`Settings` lists them).

    Raises `mindscope.errors.MindscopeError` when an argument, the task card or the norms are not acceptable.
    """
    settings = Settings.parse(arguments)
    rows = trials(settings)
    raw = settings.style == "completion"

    def score_state(state: vf.State) -> Score:
        session: Session = state["session"]
        return score(session.design, session.replies)

    def dataset() -> Dataset:
        return Dataset.from_list(
            [{"prompt": trial.prompt, "info": json.dumps(trial.model_dump(mode="json"))} for trial in rows]
        )

    return Pal50Env(
        rows=rows,
        raw=raw,
        dataset=dataset,
        eval_dataset=dataset,
        rubric=StrictRubric(score_state, name=settings.reward),
        sampling_args={"stop": list(STOP), "max_tokens": MAX_TOKENS} if raw else None,
    )


class Pal50Env(MultiTurn):
    """A participant's session. `info["replies"]` keeps what was answered, for the item table."""

    def __init__(self, *, rows: list[Trial], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._rows = rows

    async def setup_state(self, state: vf.State) -> vf.State:
        state["session"] = Session(self._rows[state["info"]["participant"]].design)
        state["info"]["replies"] = []
        return await super().setup_state(state)

    @vf.stop
    async def session_finished(self, state: vf.State) -> bool:
        return state["session"].finished

    async def get_prompt_messages(self, state: vf.State) -> vf.Messages:
        return state["session"].prompt

    async def env_response(self, messages: vf.Messages, state: vf.State, **_: Any) -> vf.Messages:
        raise NotImplementedError("the session makes the whole prompt of every turn")

    async def add_trajectory_step(self, state: vf.State, trajectory_step: vf.TrajectoryStep) -> None:
        await super().add_trajectory_step(state, trajectory_step)
        reply = _reply(trajectory_step["response"])
        state["info"]["replies"].append(reply.model_dump())
        state["session"].answer(reply)

    async def render_completion(self, state: vf.State) -> None:
        state["completion"] = state["session"].after_opening


def _reply(response: vf.Response) -> Reply:
    usage = response.usage
    return Reply(
        text=response.message.content,
        finish_reason=response.message.finish_reason,
        input_tokens=usage.prompt_tokens if usage else None,
        output_tokens=usage.completion_tokens if usage else None,
    )
