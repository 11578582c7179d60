"""ps_primal for verifiers up to 0.3: `vf-eval ps_primal --provider local -m MODEL -n 10 -r 1`."""

from typing import Any

import verifiers.legacy as vf
from datasets import Dataset
from mindscope.frameworks.legacy import SingleTurn, StrictRubric, last_reply

from ps_primal.paradigm import MAX_TOKENS, STOP, Score, Settings, score, trials


def load_environment(**arguments: Any) -> vf.Environment:
    """The environment over the trials that `arguments` describe (`Settings` lists them).

    Raises `mindscope.errors.MindscopeError` when an argument or the task card is not acceptable.
    """
    settings = Settings.parse(arguments)
    rows = trials(settings)
    raw = settings.style == "completion"

    def score_state(state: vf.State) -> Score:
        reply, finish_reason = last_reply(state)
        return score(rows[state["info"]["index"]], reply, finish_reason)

    def dataset() -> Dataset:
        return Dataset.from_list(
            [
                {
                    "prompt": [{"role": "text" if raw else "user", "content": trial.prompt}],
                    "answer": trial.target,
                    "info": trial.model_dump(exclude={"prompt", "list_pairs"}) | {"condition": trial.level},
                }
                for trial in rows
            ]
        )

    return SingleTurn(
        raw=raw,
        dataset=dataset,
        eval_dataset=dataset,
        rubric=StrictRubric(score_state, name="recall_correct"),
        sampling_args={"stop": list(STOP), "max_tokens": MAX_TOKENS} if raw else None,
    )
