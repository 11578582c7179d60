"""`mindscope lens` as typed, on a tiny model in a folder."""

import json
from pathlib import Path

import pytest
import torch
from mindscope.cli.lens import app, block_numbers
from mindscope.errors import MindscopeError
from mindscope.whitebox.lens.files import read_lens
from support.pair_jacobians import relative
from typer.testing import CliRunner, Result

WORDS = "the red house and the blue house In the painting the car is green apple window river candle "


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("work")
    texts = [WORDS[7 * i :] + WORDS * 8 for i in range(4)]
    (work / "texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    items = [
        {"task": task, "name": f"{task}{i}", "prompt": f"the {a} house and the", "intermediates": [b]}
        for task in ("multihop", "typo")
        for i, (a, b) in enumerate([("red", "blue"), ("blue", "green"), ("green", "red"), ("red", "house")])
    ]
    (work / "items.jsonl").write_text("\n".join(map(json.dumps, items)))
    return work


def lens(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def common(work: Path, folder: Path, n: int = 3) -> list[object]:
    return [work / "texts.jsonl", "-m", folder, "--prompts", n, "--max-tokens", 40]


@pytest.fixture(scope="module")
def routers(work: Path, folder: Path) -> Path:
    path = work / "routers.safetensors"
    done = lens("fit-router", *common(work, folder), "-o", path, "--experts", 2, "--components", 4)
    assert done.exit_code == 0
    return path


def test_j_plus_plus_from_texts_to_weights(work: Path, folder: Path, routers: Path) -> None:
    options = ["--rules", "relp", "--routers", routers, "-o", work / "fit"]
    done = lens("fit", *common(work, folder), *options)
    assert "the J++ lens of 3 prompts, 0 left out" in done.output
    assert {path.name for path in (work / "fit").iterdir()} == {
        "lens.safetensors",
        "shard-0-of-1.safetensors",
        "convergence.csv",
        "convergence.png",
    }
    first = (work / "fit" / "lens.safetensors").read_bytes()
    lens("fit", *common(work, folder), *options)
    assert (work / "fit" / "lens.safetensors").read_bytes() == first

    weighted = work / "weighted.safetensors"
    done = lens("weights", work / "fit/lens.safetensors", work / "items.jsonl", "-m", folder, "-o", weighted, "--json")
    report = json.loads(done.stdout)
    assert report["n_tuning"] + report["n_held_out"] == 8
    assert sorted(read_lens(weighted).weights) == [0, 1]
    shown = json.loads(lens("inspect", weighted, "--json").stdout)
    assert shown["estimator"] == "J++"
    assert shown["weights"]["1"] == pytest.approx(report["blocks"]["1"]["weights"])


def test_shards_by_hand_merge_to_the_single_fit(work: Path, folder: Path) -> None:
    for part in ("0/2", "1/2"):
        assert (
            "mindscope lens merge" in lens("fit", *common(work, folder), "-o", work / "parts", "--shard", part).output
        )
    files = [work / "parts" / f"shard-{i}-of-2.safetensors" for i in range(2)]
    assert "the J lens of 3 prompts" in lens("merge", *files, "-o", work / "merged").output
    lens("fit", *common(work, folder), "-o", work / "single")
    merged, single = (read_lens(work / name / "lens.safetensors") for name in ("merged", "single"))
    assert all(relative(merged.matrix(block), single.matrix(block)) < 1e-6 for block in (0, 1))
    assert merged.metadata == single.metadata


def test_convert_and_inspect_a_public_file(work: Path) -> None:
    public, own, back = work / "public.pt", work / "own.safetensors", work / "back.pt"
    maps = {block: torch.eye(8) * (1 + block) for block in range(3)}
    torch.save({"J": maps, "n_prompts": 5, "source_layers": [0, 1, 2], "d_model": 8}, public)
    assert "the J lens of org/m" in lens("convert", public, own, "-m", "org/m").output
    table = lens("inspect", own).output
    assert "blocks             0-2" in table
    assert "    2          2.000" in table
    lens("convert", own, back)
    assert torch.equal(read_lens(back).matrix(2), 3 * torch.eye(8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--blocks", "1-0"], "write numbers and ranges"),
        (["--blocks", "0,2"], "below the target block 2"),
        (["--rules", "lrp"], "rules: found 'lrp'"),
        (["--shard", "3"], "as 0/4"),
        (["--shard", "0/2", "--ray", "2"], "not both"),
        (["--min-characters", "100000"], "has 0 texts"),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(
    work: Path, folder: Path, arguments: list[str], message: str
) -> None:
    with pytest.raises(MindscopeError, match=message):
        lens("fit", *common(work, folder), "-o", work / "never", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lens.onnx"], "must end in"),
        (["l.pt", "--estimator", "K"], "one of logit"),
        (["l.pt", "--dtype", "int8"], "one of f"),
    ],
)
def test_wrong_conversions_are_refused(work: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(MindscopeError, match=message):
        lens("convert", work / "own.safetensors", *arguments)


def test_block_numbers() -> None:
    assert block_numbers("0-3, 8,2") == (0, 1, 2, 3, 8)
    for wrong in ("", "a", "1-", "-1", "3-1", "1,,2"):
        with pytest.raises(MindscopeError, match="as 0-8,12"):
            block_numbers(wrong)
