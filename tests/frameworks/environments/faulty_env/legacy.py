import verifiers.legacy as vf
from datasets import Dataset
from mindscope.frameworks.legacy import SingleTurn, StrictRubric, last_reply

from faulty_env.paradigm import Score, Settings, score, trials


def load_environment() -> vf.Environment:
    rows = {trial.trcode: trial for trial in trials(Settings())}

    def score_state(state: vf.State) -> Score:
        return score(rows[state["info"]["trcode"]], last_reply(state)[0])

    data = Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": trial.prompt}], "info": {"trcode": trial.trcode}}
            for trial in rows.values()
        ]
    )
    return SingleTurn(raw=False, eval_dataset=data, dataset=data, rubric=StrictRubric(score_state, name="right"))
