"""`mindscope lens readout` and `evaluate` on a saved tiny model, and recall worked out by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from mindscope.cli.lens_readout import block_numbers, evaluate, readout
from mindscope.errors import MindscopeError
from mindscope.whitebox.activations import capture
from mindscope.whitebox.lens.files import write_lens
from mindscope.whitebox.lens.lens import Lens
from mindscope.whitebox.lens.readout import Readout
from mindscope.whitebox.lens.recall import ItemRanks, gain, item_ranks, recall
from mindscope.whitebox.lens.weights import WeightItem
from support.tiny_models import D_MODEL, tiny_local, tiny_model, tiny_tokenizer
from typer.testing import CliRunner

WORDS = ("red", "blue", "green", "car", "house", "boat", "chair", "tiger")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("lenses")
    tiny_model("llama").save_pretrained(folder / "model")
    tiny_tokenizer().save_pretrained(folder / "model")
    write_lens(a_lens(), folder / "tilted.safetensors")
    tasks = ["colours"] * 12 + ["things"] * 8
    rows = [
        {
            "task": task,
            "name": f"n{i}",
            "prompt": f"the {WORDS[i % 8]} and the {WORDS[i // 3]}",
            "intermediates": [WORDS[-1 - i % 5], "car"],
        }
        for i, task in enumerate(tasks)
    ]
    (folder / "items.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return {name: str(folder / name) for name in ("model", "tilted.safetensors", "items.jsonl", "grid.html")}


def a_lens() -> Lens:
    model = tiny_local("llama")
    generator = torch.Generator().manual_seed(5)
    maps = {b: torch.eye(D_MODEL) + 0.5 * torch.randn(D_MODEL, D_MODEL, generator=generator) for b in (0, 1)}
    return Lens(Lens.logit(model).metadata.model_copy(update={"estimator": "J"}), maps)


def run(command: Any, *arguments: str) -> str:
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_readout_prints_the_top_of_every_block(files: dict[str, str]) -> None:
    said = run(readout, "the red car", "-m", files["model"], "--lens", files["tilted.safetensors"], "--top", "3")
    assert [line.split()[0] for line in said.splitlines()[1:]] == ["block", "0", "1", "2"]
    document = json.loads(
        run(
            readout,
            "the red car",
            "-m",
            files["model"],
            "--lens",
            files["tilted.safetensors"],
            "--blocks",
            "1",
            "--json",
        )
    )
    assert document["lens"] == "J"
    [reading] = document["readings"]
    model = tiny_local("llama")
    [found] = capture(model, ["the red car"], [1], [-1])
    assert reading["token_ids"] == Readout(model, a_lens()).top(1, found.values[1]).ids[0].tolist()
    assert (reading["block"], reading["position"]) == (1, len(model.encode("the red car")) - 1)


def test_readout_draws_all_positions_and_prints_the_one_asked_for(files: dict[str, str]) -> None:
    arguments = ("the red car", "-m", files["model"], "--position", "-2", "--unfiltered")
    plain = run(readout, *arguments)
    drawn = run(readout, *arguments, "--html", files["grid.html"])
    assert drawn == f"{plain}\nwrote {files['grid.html']}\n"
    page = Path(files["grid.html"]).read_text(encoding="utf-8")
    n_positions = len(tiny_local("llama").encode("the red car"))
    assert page.count("<td tabindex") == 3 * n_positions


def test_blocks_are_numbers_and_ranges() -> None:
    assert block_numbers("0-2, 8,5-5") == [0, 1, 2, 8, 5]
    for wrong in ("", "a", "1-", "-1", "1,,2"):
        with pytest.raises(MindscopeError, match="write numbers and ranges, as 0-5,8"):
            block_numbers(wrong)


def test_ranks_of_items_are_those_of_the_readout_at_their_positions() -> None:
    model = tiny_local("gemma2")
    lens = Lens(Lens.logit(model).metadata, a_lens().matrices)
    items = [
        WeightItem("t", "long", (1, 20, 40, 60, 80, 100, 120, 140, 160), -1, ((33, 44), (5,))),
        WeightItem("t", "short", (1, 9, 8, 7), 1, ((300,),)),
    ]
    for one, ranks in zip(
        (lens, Lens.logit(model)), item_ranks(model, [lens, Lens.logit(model)], items, [1, 0]), strict=True
    ):
        for item, found in zip(items, ranks, strict=True):
            [residuals] = capture(model, [item.ids], [0, 1], [item.position])
            for j, block in enumerate([1, 0]):
                expected = Readout(model, one).ranks(block, residuals.values[block], [item.candidates], spare=True)
                assert found.ranks[:, j].tolist() == expected[0]
    with pytest.raises(MindscopeError, match="no items"):
        item_ranks(model, [lens], [], [0])


def test_recall_takes_the_best_block_and_the_mean_of_task_means() -> None:
    ranks = [
        ItemRanks("a", "1", torch.tensor([[50, 10], [11, 12]])),  # one of two recalled at 10, at block 1
        ItemRanks("a", "2", torch.tensor([[1, 99]])),
        ItemRanks("a", "3", torch.tensor([[99, 99]])),
        ItemRanks("b", "1", torch.tensor([[3, 99], [99, 4], [99, 99], [99, 99]])),
    ]
    found = recall(ranks, 10)
    assert found.tasks["a"].value == pytest.approx((0.5 + 1 + 0) / 3)
    assert found.tasks["b"].value == pytest.approx(0.5)
    assert found.macro.value == pytest.approx(0.5)
    assert found.by_block == pytest.approx([((0 + 1 + 0) / 3 + 0.25) / 2, ((0.5 + 0 + 0) / 3 + 0.25) / 2])
    assert recall(ranks, 9).tasks["a"].value == pytest.approx(1 / 3)
    assert (found.macro.n, found.tasks["a"].n) == (4, 3)


def test_the_gain_is_paired_and_its_interval_covers_resampled_items() -> None:
    rng = np.random.default_rng(0)
    base = [ItemRanks("ab"[i % 2], str(i), torch.tensor([[int(r)]])) for i, r in enumerate(rng.integers(1, 30, 60))]
    better = [ItemRanks(item.task, item.name, (item.ranks - 5).clamp(min=1)) for item in base]
    assert gain(base, base, 10).value == 0
    found = gain(better, base, 10)
    assert found.value == pytest.approx(recall(better, 10).macro.value - recall(base, 10).macro.value)
    assert 0 < found.low < found.value < found.high
    unpaired = recall(better, 10).macro
    assert found.high - found.low < 2 * (unpaired.high - unpaired.low)


def test_evaluate_compares_lenses_on_held_out_items(files: dict[str, str]) -> None:
    arguments = (files["items.jsonl"], "-m", files["model"], "--lens", files["tilted.safetensors"], "-k", "60")
    said = run(evaluate, *arguments)
    assert [line.split()[0] for line in said.splitlines()] == ["recall@60,", "lens", "logit", "tilted", "Macro:"]
    sizes = {}
    for side in ("held-out", "tuning", "all"):
        document = json.loads(run(evaluate, *arguments, "--side", side, "--json"))
        sizes[side] = document["items"]
        logit, tilted = document["lenses"]
        assert logit["over_logit"]["value"] == 0
        assert tilted["over_logit"]["value"] == pytest.approx(tilted["macro"]["value"] - logit["macro"]["value"])
        assert list(logit["by_block"]) == ["0", "1"]
    assert sizes["all"] == 20 == sizes["held-out"] + sizes["tuning"]
    assert sizes["tuning"] >= 2
