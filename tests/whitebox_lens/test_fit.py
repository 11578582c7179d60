"""Fits: means by brute force, shards that merge to the single fit, refusals, and interruption at any moment."""

import csv
import json
import logging
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from mindscope.errors import MindscopeError
from mindscope.whitebox.lens.fit import (
    draw_convergence,
    fit,
    fit_on_ray,
    fit_routers,
    probe_norm,
    read_prompts,
    shard_path,
    write_convergence,
)
from mindscope.whitebox.lens.jacobian import JacobianSettings, prompt_sums
from mindscope.whitebox.lens.lens import Experts, Lens
from mindscope.whitebox.lens.shards import Shard, merge
from mindscope.whitebox.model import LocalModel
from support.pair_jacobians import random_ids, relative

Prompts = list[list[int]]


@pytest.fixture(scope="module")
def routers(model: LocalModel, prompts: Prompts, settings: JacobianSettings):
    return fit_routers(model, prompts, settings, n_experts=3, n_components=4)


@pytest.fixture(scope="module")
def whole(model, prompts, settings, tmp_path_factory) -> Shard:
    return fit(model, prompts, settings, tmp_path_factory.mktemp("whole"), outlier_factor=100)


@pytest.fixture(scope="module")
def whole_experts(model, prompts, settings, routers, tmp_path_factory) -> Shard:
    folder = tmp_path_factory.mktemp("experts")
    return fit(model, prompts, settings, folder, routers=routers, outlier_factor=100)


def each(model, prompts, settings, routers=None):
    return [prompt_sums(model, ids, settings, routers) for i, ids in enumerate(prompts) if i != 2]


def test_the_j_lens_weighs_prompts_alike(model, prompts, settings, whole: Shard) -> None:
    single = [sums[1][0] for sums, _ in each(model, prompts, settings)]
    lens = whole.lens()
    assert relative(lens.matrix(1), sum(single) / 4) < 1e-6
    assert lens.metadata.n_prompts == 4
    assert lens.metadata.estimator == "R"
    assert whole.plan.too_short == (2,)


def test_experts_weigh_positions_alike(model, prompts, settings, routers, whole, whole_experts: Shard) -> None:
    parts = each(model, prompts, settings, routers)
    counts = sum(weights[1] for _, weights in parts)
    assert counts.sum() == sum(len(ids) - 5 for i, ids in enumerate(prompts) if i != 2)
    lens = whole_experts.lens(min_positions=1)
    assert lens.metadata.estimator == "J++"
    for e in range(3):
        mean = sum(sums[1][e] for sums, _ in parts) / counts[e]
        assert relative(lens.experts[1].maps[e], mean) < 1e-5
    pooled = sum(n / counts.sum() * m for n, m in zip(counts, lens.experts[1].maps, strict=True))
    assert relative(lens.matrix(1), pooled) < 1e-5
    assert relative(lens.matrix(1), whole.lens().matrix(1)) > 1e-3  # lengths differ, so the two means do


def test_one_expert_is_the_pooled_map(model, prompts, settings, tmp_path) -> None:
    alone = fit_routers(model, prompts, settings, n_experts=1, n_components=4)
    lens = fit(model, prompts, settings, tmp_path, routers=alone).lens(min_positions=1)
    assert relative(lens.experts[0].maps[0], lens.matrix(0)) < 1e-6


def test_an_expert_of_few_positions_takes_the_pooled_map(routers) -> None:
    sums = torch.randn(3, 4, 4)
    experts = Experts.from_sums(sums, torch.tensor([60, 49, 0]), routers[0])
    assert experts.fallback.tolist() == [False, True, True]
    assert torch.allclose(experts.maps[0], sums[0] / 60)
    assert torch.allclose(experts.maps[1], sums.sum(0) / 109)
    with pytest.raises(MindscopeError, match="no kept position"):
        Experts.from_sums(sums, torch.zeros(3, dtype=torch.int64), routers[0])


def test_routers_do_not_depend_on_the_memory_allowed(model, prompts, settings, routers) -> None:
    frugal = fit_routers(model, prompts, settings, n_experts=3, n_components=4, memory_gb=1e-9)
    assert {b: r.sha256() for b, r in frugal.items()} == {b: r.sha256() for b, r in routers.items()}


@pytest.mark.parametrize("with_experts", [False, True])
def test_shards_in_any_order_merge_to_the_single_fit(
    model, prompts, settings, routers, whole, whole_experts, tmp_path, with_experts: bool
) -> None:
    chosen = routers if with_experts else None
    reference = whole_experts if with_experts else whole
    parts = [
        fit(model, prompts, settings, tmp_path, routers=chosen, shard=(i, 3), outlier_factor=100) for i in (2, 0, 1)
    ]
    merged = merge([Shard.load(shard_path(tmp_path, i, 3)) for i in (1, 0, 2)])
    for block in (0, 1):
        assert relative(merged.sums[block], reference.sums[block]) < 1e-6
        assert torch.equal(merged.weights[block], reference.weights[block])
        assert torch.equal(merged.sums[block], merge(parts).sums[block])
    assert sorted(record.index for record in merged.records) == [0, 1, 3, 4]


@pytest.fixture(scope="module")
def halves(model, prompts, settings, tmp_path_factory) -> list[Shard]:
    folder = tmp_path_factory.mktemp("halves")
    return [fit(model, prompts, settings, folder, shard=(i, 2), outlier_factor=100) for i in range(2)]


def changed(shard: Shard, **changes) -> Shard:
    return replace(shard, plan=shard.plan.model_copy(update=changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"d_model": 64},
        {"model": "another"},
        {"revision": "main"},
        {"dtype": "bfloat16"},
        {"tokenizer_sha256": "0"},
        {"routers_sha256": "0"},
        {"n_experts": 8},
        {"data_sha256": "0"},
        {"n_prompts": 6},
        {"outliers": (1,)},
        {"too_short": ()},
        {"versions": {"torch": "1", "transformers": "1"}},
    ],
)
def test_merging_refuses_each_difference_by_name(halves: list[Shard], changes: dict) -> None:
    with pytest.raises(MindscopeError, match=f"differ in {next(iter(changes))}: "):
        merge([halves[0], changed(halves[1], **changes)])


@pytest.mark.parametrize(
    "changes",
    [
        {"blocks": (0,)},
        {"target_block": 1},
        {"rules": "none"},
        {"skip_first": 5},
        {"max_tokens": 64},
        {"rows_per_pass": 8},
    ],
)
def test_merging_refuses_each_setting_by_name(halves: list[Shard], settings, changes: dict) -> None:
    other = changed(halves[1], settings=settings.model_copy(update=changes))
    with pytest.raises(MindscopeError, match=rf"differ in settings\.{next(iter(changes))}: "):
        merge([halves[0], other])


def test_merging_refuses_holes_doubles_and_unfinished_shards(halves: list[Shard]) -> None:
    with pytest.raises(MindscopeError, match="in no shard"):
        merge(halves[:1])
    with pytest.raises(MindscopeError, match="more than one shard"):
        merge([*halves, halves[0]])
    unfinished = replace(halves[1], records=halves[1].records[:1])
    with pytest.raises(MindscopeError, match="shard 1 of 2 is not finished: 1 of 2 prompts remain"):
        merge([halves[0], unfinished])
    with pytest.raises(MindscopeError, match="not finished"):
        unfinished.lens()
    with pytest.raises(MindscopeError, match="at least one"):
        merge([])


def test_another_fit_in_the_folder_is_refused(model, prompts, settings, tmp_path) -> None:
    fit(model, prompts[:1], settings, tmp_path)
    with pytest.raises(MindscopeError, match=r"another fit \(settings.rules: 'none' != 'relp'\)"):
        fit(model, prompts[:1], settings.model_copy(update={"rules": "none"}), tmp_path)


def test_a_finished_fit_is_not_repeated(model, prompts, settings, whole: Shard, tmp_path) -> None:
    path = shard_path(tmp_path, 0, 1)
    whole.save(path)
    before = path.read_bytes()
    again = fit(model, prompts, settings, tmp_path)
    assert path.read_bytes() == before
    assert again.remaining == []


CHILD = """
import json, os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from mindscope.whitebox.lens import files
from mindscope.whitebox.lens.fit import fit
from mindscope.whitebox.lens.jacobian import JacobianSettings
from mindscope.whitebox.model import LocalModel

folder, out, moment, settings, prompts = sys.argv[1:]
real, writes = files.save_file, 0

def save(tensors, name, metadata):
    global writes
    writes += 1
    if moment == f"before write {writes}":
        os.kill(os.getpid(), signal.SIGKILL)
    real(tensors, name, metadata=metadata)
    if moment == f"inside write {writes}":
        os.truncate(name, os.path.getsize(name) // 2)
        os.kill(os.getpid(), signal.SIGKILL)

files.save_file = save
settings = JacobianSettings.model_validate_json(settings)
fit(LocalModel.load(folder), json.loads(prompts), settings, Path(out), outlier_factor=100)
"""


def run_child(folder: Path, out: Path, moment: str, settings: JacobianSettings, prompts: Prompts) -> int:
    arguments = [str(folder), str(out), moment, settings.model_dump_json(), json.dumps(prompts)]
    return subprocess.run([sys.executable, "-c", CHILD, *arguments], timeout=300).returncode


def test_killed_at_any_moment_the_fit_ends_with_the_same_file(folder, prompts, settings, tmp_path) -> None:
    """Killed while the plan is written, before the second prompt is, and halfway through writing the last."""
    assert run_child(folder, tmp_path / "straight", "never", settings, prompts) == 0
    expected = shard_path(tmp_path / "straight", 0, 1).read_bytes()
    out = tmp_path / "killed"
    for moment in ("inside write 1", "before write 3", "inside write 3"):
        assert run_child(folder, out, moment, settings, prompts) == -signal.SIGKILL
        if shard_path(out, 0, 1).exists():
            Shard.load(shard_path(out, 0, 1))
    assert len(Shard.load(shard_path(out, 0, 1)).records) == 3
    assert run_child(folder, out, "never", settings, prompts) == 0
    assert shard_path(out, 0, 1).read_bytes() == expected
    assert sorted(path.name for path in out.iterdir()) == ["convergence.csv", "shard-0-of-1.safetensors"]
    assert (out / "convergence.csv").read_text() == (tmp_path / "straight" / "convergence.csv").read_text()


def test_a_failed_write_leaves_the_file_before(whole: Shard, tmp_path, monkeypatch) -> None:
    path = tmp_path / "shard.safetensors"
    whole.save(path)
    before = path.read_bytes()

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mindscope.whitebox.lens.files.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        whole.save(path)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["shard.safetensors"]


def test_outliers_are_logged_left_out_and_the_same_for_every_shard(
    model, prompts, settings, tmp_path, caplog: pytest.LogCaptureFixture
) -> None:
    norms = {i: probe_norm(model, ids, settings) for i, ids in enumerate(prompts) if i != 2}
    largest = max(norms, key=lambda i: norms[i])
    ranked = sorted(norms.values())
    factor = (ranked[-1] + ranked[-2]) / (ranked[1] + ranked[2])  # between the largest and the one before it
    with caplog.at_level(logging.WARNING, logger="mindscope.lens"):
        shards = [fit(model, prompts, settings, tmp_path, shard=(i, 2), outlier_factor=factor) for i in range(2)]
    assert f"prompt {largest} is left out" in caplog.text
    assert all(shard.plan.outliers == (largest,) for shard in shards)
    assert largest not in [record.index for record in merge(shards).records]


def test_the_probed_norm_estimates_the_frobenius_norm(model, prompts, settings, whole: Shard) -> None:
    for record in whole.records:
        assert probe_norm(model, prompts[record.index], settings) == pytest.approx(max(record.norms), rel=0.5)


def test_convergence_table_and_figure(model, prompts, settings, whole: Shard, tmp_path) -> None:
    write_convergence(whole, tmp_path / "c.csv")
    rows = list(csv.DictReader((tmp_path / "c.csv").open()))
    assert [(row["prompt"], row["block"]) for row in rows[:4]] == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    first, second = (prompt_sums(model, prompts[i], settings)[0][1][0] for i in (0, 1))
    assert float(rows[3]["norm"]) == pytest.approx(second.norm().item() / 32**0.5, rel=1e-5)
    assert float(rows[3]["shift"]) == pytest.approx(((second - first).norm() / (2 * first.norm())).item(), rel=1e-4)
    assert rows[1]["shift"] == ""
    draw_convergence(whole, tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_progress_counts_rows(model, prompts, settings, tmp_path) -> None:
    told: list[tuple[int, int]] = []
    fit(model, prompts[:2], settings, tmp_path, progress=lambda done, total: told.append((done, total)))
    assert told == [(n, 64) for n in (11, 22, 32, 43, 54, 64)]


def test_what_does_not_fit_together_is_refused(model, prompts, settings, routers, tmp_path) -> None:
    with pytest.raises(MindscopeError, match="count from 0 to 1"):
        fit(model, prompts, settings, tmp_path, shard=(2, 2))
    with pytest.raises(MindscopeError, match="routers are of blocks"):
        fit(model, prompts, settings, tmp_path, routers={0: routers[0]})
    with pytest.raises(MindscopeError, match="at least 6 tokens"):
        fit(model, [random_ids(5)], settings, tmp_path)
    with pytest.raises(MindscopeError, match="outside the vocabulary"):
        fit(model, [[5, 100_000, 7]], settings, tmp_path)


def test_a_jacobian_that_is_not_finite_is_not_added(whole: Shard, model, prompts, settings) -> None:
    sums, weights = prompt_sums(model, prompts[0], settings)
    sums[1][0, 0, 0] = float("inf")
    fresh = Shard(whole.plan)
    with pytest.raises(MindscopeError, match=r"prompt 0 .* not finite at block 1"):
        fresh.add(0, prompts[0], sums, weights)
    assert not fresh.sums


def test_prompts_are_the_first_long_texts(model: LocalModel, tmp_path) -> None:
    texts = ["short", "the red car and " * 40, "the blue house " * 50, "In the painting " * 60]
    plain, lines = tmp_path / "t.txt", tmp_path / "t.jsonl"
    plain.write_text("\n".join(texts))
    lines.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    expected = [model.encode(text)[:20] for text in texts[1:3]]
    assert read_prompts(plain, model, n=2, max_tokens=20) == expected
    assert read_prompts(lines, model, n=2, max_tokens=20) == expected
    with pytest.raises(MindscopeError, match="has 3 texts of at least 600 characters; 9 are needed"):
        read_prompts(plain, model, n=9)


def test_lens_of_a_fit_is_of_its_model_only(whole: Shard, model: LocalModel) -> None:
    whole.lens().check(model)
    assert whole.lens().blocks == Lens.logit(model).blocks == (0, 1)


def test_two_ray_workers_give_the_single_fits_sums(folder, prompts, settings, routers, whole_experts, tmp_path) -> None:
    ray = pytest.importorskip("ray")
    try:
        shards = fit_on_ray(
            str(folder),
            prompts,
            settings,
            tmp_path,
            n_shards=2,
            routers=routers,
            outlier_factor=100,
            cpus_per_shard=0.5,
        )
    finally:
        ray.shutdown()
    merged = merge(shards)
    for block in (0, 1):
        assert relative(merged.sums[block], whole_experts.sums[block]) < 1e-6
        assert torch.equal(merged.weights[block], whole_experts.weights[block])
    assert all(shard_path(tmp_path, i, 2).exists() for i in range(2))
