import json
from pathlib import Path

import pytest
from support.commands import Finished, verifiers_03
from support.tiny_models import tiny_model, tiny_tokenizer

ARGUMENTS = json.dumps({"part": "test", "scheme": "template", "multi_token": "sequence", "prior": False})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for seed in (1, 2):
        tiny_model("llama", seed=seed).save_pretrained(folder / f"tiny-{seed}")
        tiny_tokenizer().save_pretrained(folder / f"tiny-{seed}")
    return folder


def mindscope(cwd: Path, *arguments: str) -> Finished:
    return verifiers_03().run("mindscope", *arguments, cwd=cwd)


def test_one_command_scores_models_and_reports_them_side_by_side(tiny: Path, tmp_path: Path) -> None:
    models = ["--model", "tiny-1", "--model", "tiny-2"]
    command = ["space-tracking", "validate", *models, "-o", str(tmp_path / "out"), "--env-args", ARGUMENTS]
    done = mindscope(tiny, *command)
    assert done.code == 0, done
    markdown = (tmp_path / "out" / "validation.md").read_text()
    for text in (done.stdout, markdown, (tmp_path / "out" / "validation.html").read_text()):
        assert "tiny-1" in text
        assert "tiny-2" in text
        assert "Models compared" in text
        assert "another corpus" in text
        assert "white-box, sequence" in text
    assert "| te-drawing | 16 |" in markdown

    records = tmp_path / "out" / "tiny-1" / "readouts.jsonl"
    before = records.read_bytes()
    again = mindscope(tiny, *command, "--json")
    assert again.code == 0, again
    assert [model["label"] for model in again.json["models"]] == ["tiny-1", "tiny-2"]
    assert records.read_bytes() == before

    twice = mindscope(tiny, "space-tracking", "validate", *[str(tmp_path / "out" / "tiny-1")] * 2, "--json")
    assert len({model["label"] for model in twice.json["models"]}) == 1
    assert all("tiny-1 (" in model["label"] for model in twice.json["models"])


def test_the_short_form_keeps_records_too(tiny: Path, tmp_path: Path) -> None:
    command = ["score", "space_tracking", "--model", str(tiny / "tiny-1"), "--env-args", ARGUMENTS]
    kept = mindscope(tmp_path, *command, "-o", "run", "--json")
    assert kept.code == 0, kept
    assert kept.json["models"][0]["judged"] == 124
    assert mindscope(tmp_path, *command, "-o", "run").code == 2
    resumed = mindscope(tmp_path, *command, "-o", "run", "--resume", "--json")
    assert (resumed.code, resumed.json) == (0, kept.json)


def test_the_audit_passes_and_says_what_a_tokenizer_breaks(tiny: Path, tmp_path: Path) -> None:
    sound = mindscope(tmp_path, "audit", "space_tracking", "--json")
    assert sound.code == 0, sound
    assert sound.json["ok"] is True
    assert (sound.json["standard"]["n"], sound.json["distinct"]["n"]) == (1910, 240)
    broken = mindscope(tmp_path, "audit", "space-tracking", "--tokenizer", str(tiny / "tiny-1"))
    assert broken.code == 1
    assert "first-token scoring is not valid here" in broken.stdout
    assert broken.stdout.rstrip().endswith("failed")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["score", "space_tracking", "-m", "embedded", "--resume"], "--resume needs -o"),
        (["score", "ps_primal", "-m", "embedded", "-o", "x"], "keeps no records"),
        (["score", "space_tracking", "-m", "tiny-1"], "multi_token='sequence'"),
        (["space-tracking", "score", "-m", "absent", "-o", "x"], "'absent' is not a folder"),
        (["space-tracking", "validate"], "name a run's folder"),
        (["space-tracking", "validate", "--model", "embedded"], "--model needs -o"),
        (["space-tracking", "validate", "absent"], "no such file or folder"),
        (["score", "space_tracking", "-m", "embedded", "--env-args", '{"part": "valid"}'], "part"),
        (["audit", "ps_primal"], "has no module ps_primal.audit"),
        (["audit", "space_tracking", "--tokenizer", "absent"], "no tokenizer could be had from 'absent'"),
    ],
)
def test_what_cannot_be_done_says_why(tiny: Path, arguments: list[str], sentence: str) -> None:
    done = mindscope(tiny, *arguments)
    assert done.code == 2, done
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
