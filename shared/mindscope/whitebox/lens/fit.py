"""Fitting a lens: prompts in, a checkpointed shard of sums out, and from one or many shards the lens.

    prompts = read_prompts(Path("texts.jsonl"), model, n=64)
    settings = JacobianSettings(blocks=range(17), target_block=17, rules="relp")
    routers = fit_routers(model, prompts, settings)                      # for J++; leave out for one map a block
    shard = fit(model, prompts, settings, Path("fit"), routers=routers)  # resumes what is in the folder
    write_lens(shard.lens(), Path("lens.safetensors"))

`fit(..., shard=(i, n))` on several machines and `merge`, or `fit_on_ray`, give the same sums.

The folder of a fit holds the shard's file, whole after every prompt, and a table of each block's convergence. What
is kept in memory besides the model: the sums, blocks x experts x d_model^2 fp32 numbers, once more those of one
prompt, and what a pass takes, which `rows_per_pass` bounds (see `jacobian`). Choose fewer blocks to hold less.
"""

import csv
import hashlib
import io
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from pydantic import BaseModel

from mindscope.errors import MindscopeError
from mindscope.records import installed_versions, write_whole
from mindscope.stimuli import read_records, read_text
from mindscope.whitebox.activations import capture
from mindscope.whitebox.lens.jacobian import JacobianSettings, data_sha256, kept_positions, prompt_sums, record
from mindscope.whitebox.lens.lens import tokenizer_sha256
from mindscope.whitebox.lens.router import Router, fit_router
from mindscope.whitebox.lens.shards import FitPlan, Shard
from mindscope.whitebox.model import LocalModel, Progress

log = logging.getLogger("mindscope.lens")

MIN_CHARACTERS = 600
OUTLIER_FACTOR = 5.0
"""A prompt is left out when its Jacobian's norm exceeds this many times the median prompt's."""
N_PROBES = 4
"""Random directions by which a prompt's norm is estimated before the fit."""


class _Text(BaseModel):
    text: str


def read_prompts(
    path: Path, model: LocalModel, *, n: int, max_tokens: int = 128, min_characters: int = MIN_CHARACTERS
) -> list[list[int]]:
    """Token ids of the first `n` texts of at least `min_characters` characters, in the file's order, cut to
    `max_tokens`; special tokens as the tokenizer adds them.

    The file is JSONL with a field `text`, or plain text with one text a line. Raises MindscopeError when it has
    fewer such texts.
    """
    is_jsonl = path.suffix == ".jsonl"
    texts = [row.text for row in read_records(path, _Text)] if is_jsonl else read_text(path).split("\n")
    long_enough = [text for text in texts if len(text) >= min_characters][:n]
    if len(long_enough) < n:
        raise MindscopeError(
            f"{path} has {len(long_enough)} texts of at least {min_characters} characters; {n} are needed"
        )
    return [model.encode(text)[:max_tokens] for text in long_enough]


def fit_routers(
    model: LocalModel,
    prompts: Sequence[Sequence[int]],
    settings: JacobianSettings,
    *,
    n_experts: int = 8,
    n_components: int = 64,
    seed: int = 0,
    memory_gb: float = 2.0,
    progress: Progress | None = None,
) -> dict[int, Router]:
    """A router for each source block, from the residuals at all prompts' kept positions.

    Forward passes only. As many blocks at a time as `memory_gb` of fp32 activations hold, at least one; the prompts
    run once for each such group. Prompts without a kept position are left out. Raises MindscopeError as
    `fit_router` does, and when the settings do not fit the model.
    """
    settings.check(model)
    usable = [list(ids[: settings.max_tokens]) for ids in prompts if _is_long_enough(ids, settings)]
    kept = [list(kept_positions(len(ids), settings.skip_first)) for ids in usable]
    bytes_per_block = max(1, 4 * model.d_model * sum(map(len, kept)))
    at_once = max(1, int(memory_gb * 2**30 / bytes_per_block))
    routers: dict[int, Router] = {}
    for start in range(0, len(settings.blocks), at_once):
        group = settings.blocks[start : start + at_once]
        found: dict[int, list[torch.Tensor]] = {block: [] for block in group}
        for residuals in capture(model, usable, group, kept) if usable else ():
            for block in group:
                found[block].append(residuals.values[block].float().cpu())
        for block, parts in found.items():
            activations = torch.cat(parts) if parts else torch.empty(0, model.d_model)
            routers[block] = fit_router(activations, n_experts=n_experts, n_components=n_components, seed=seed)
            if progress is not None:
                progress(len(routers), len(settings.blocks))
    return routers


def fit(
    model: LocalModel,
    prompts: Sequence[Sequence[int]],
    settings: JacobianSettings,
    folder: Path,
    *,
    routers: Mapping[int, Router] | None = None,
    shard: tuple[int, int] = (0, 1),
    outlier_factor: float = OUTLIER_FACTOR,
    progress: Progress | None = None,
) -> Shard:
    """Fit shard `shard` = (i, n) of `prompts`, and return it; of all of them by default.

    What an earlier call left in `folder` is taken up, so the same call after an interruption, at whatever moment,
    ends with the same file as one that ran through: `shard_path(folder, i, n)`, beside it `convergence.csv`.

    Every shard screens all prompts alike: a prompt whose norm, max over blocks of |J_p|_F estimated from random
    directions, exceeds `outlier_factor` times the median is left out, logged and recorded in the plan.

    `progress` is told vector-Jacobian rows done and rows in all. Raises MindscopeError when the settings, routers or
    prompts do not fit the model or each other, or the folder holds another fit's shard.
    """
    settings.check(model)
    index, count = shard
    if not 0 <= index < count:
        raise MindscopeError(f"shard {index} of {count} does not exist; count from 0 to {count - 1}")
    if routers and sorted(routers) != list(settings.blocks):
        raise MindscopeError(f"the routers are of blocks {sorted(routers)}, the settings' of {list(settings.blocks)}")
    rows = model.rows([list(ids[: settings.max_tokens]) for ids in prompts])
    folder.mkdir(parents=True, exist_ok=True)
    path = shard_path(folder, index, count)
    for unfinished in folder.glob(f".{path.name}.*.part"):  # of a write that was killed
        unfinished.unlink()
    plan = _plan(model, rows, settings, routers)
    if path.exists():
        state = Shard.load(path)
        plan = plan.model_copy(update={"outliers": state.plan.outliers})
        if different := plan.differences(state.plan):
            raise MindscopeError(f"{path} is of another fit ({'; '.join(different)}); give another folder")
        log.info("resuming at prompt %d of %d", len(state.records) + 1, len(state.assigned))
    else:
        plan = plan.model_copy(update={"outliers": find_outliers(model, rows, plan, outlier_factor)})
        state = Shard(plan, index, count, dict(routers or {}))
        state.save(path)
    if not plan.kept_prompts:
        raise MindscopeError(
            f"no prompt has a kept position; give prompts of at least {settings.skip_first + 2} tokens"
        )
    _run(model, rows, state, path, progress)
    return state


def shard_path(folder: Path, index: int, count: int) -> Path:
    return folder / f"shard-{index}-of-{count}.safetensors"


def find_outliers(
    model: LocalModel, rows: Sequence[Sequence[int]], plan: FitPlan, factor: float = OUTLIER_FACTOR
) -> tuple[int, ...]:
    """Indices of prompts whose norm exceeds `factor` times the median's; see `probe_norm`. Each is logged."""
    norms = {i: probe_norm(model, rows[i], plan.settings) for i in plan.kept_prompts}
    middle = median(norms.values()) if norms else 0.0
    outliers = tuple(i for i, norm in norms.items() if norm > factor * middle)
    for i in outliers:
        log.warning(
            "prompt %d is left out: its norm %.3g exceeds %g times the median %.3g", i, norms[i], factor, middle
        )
    return outliers


def probe_norm(model: LocalModel, ids: Sequence[int], settings: JacobianSettings) -> float:
    """max over blocks of |J_p|_F / sqrt(d), estimated by E |w^T J_p|^2 = |J_p|_F^2 for w ~ N(0, I)."""

    def compute() -> float:
        graph = record(model, ids, settings)
        d = graph.target.shape[-1]
        probes = torch.randn(N_PROBES, d, generator=torch.Generator().manual_seed(0))
        _, gradients = next(graph.products(probes, N_PROBES))
        return max(g.float().mean(1).square().sum(-1).mean().div(d).sqrt().item() for g in gradients.values())

    return model.run(compute)


def convergence_rows(shard: Shard) -> list[dict[str, Any]]:
    """One row a prompt and block: how large the prompt's Jacobian is, and how far it moved the running mean."""
    return [
        {"prompt": record.index, "n": n, "block": block, "norm": norm, "shift": shift}
        for n, record in enumerate(shard.records, start=1)
        for block, norm, shift in zip(shard.plan.settings.blocks, record.norms, record.shifts, strict=True)
    ]


def write_convergence(shard: Shard, path: Path) -> None:
    """`convergence_rows` as CSV: prompt, n, block, norm = |J_p|_F / sqrt(d_model), shift."""
    text = io.StringIO()
    table = csv.DictWriter(text, ["prompt", "n", "block", "norm", "shift"], lineterminator="\n")
    table.writeheader()
    table.writerows(convergence_rows(shard))
    write_whole(path, text.getvalue())


def draw_convergence(shard: Shard, path: Path) -> None:
    """The running mean's shift against the number of prompts, a line a block, as an image. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    blocks = shard.plan.settings.blocks
    rows = convergence_rows(shard)
    shades = _shades(len(blocks))
    for block, shade in zip(blocks, shades, strict=True):
        points = [(row["n"], row["shift"]) for row in rows if row["block"] == block and row["shift"] is not None]
        axes.plot([n for n, _ in points], [shift for _, shift in points], color=shade, linewidth=1.2, label=f"{block}")
    axes.set_yscale("log")
    axes.set_xlabel("prompts")
    axes.set_ylabel("relative shift of the mean Jacobian")
    axes.set_title(f"{shard.plan.estimator} lens of {shard.plan.model}", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="block", fontsize=7, title_fontsize=8, ncols=1 + len(blocks) // 12, frameon=False)
    figure.savefig(path, dpi=150)


def fit_on_ray(
    source: str,
    prompts: Sequence[Sequence[int]],
    settings: JacobianSettings,
    folder: Path,
    *,
    n_shards: int,
    routers: Mapping[int, Router] | None = None,
    outlier_factor: float = OUTLIER_FACTOR,
    cpus_per_shard: float = 1,
    gpus_per_shard: float = 0,
    progress: Progress | None = None,
    **load: Any,
) -> list[Shard]:
    """`fit` of every shard as a Ray task; `load` goes to `LocalModel.load(source, ...)` in each.

    The cluster is the one that ray is connected to, else one on this machine. A shard's file is written in `folder`
    where its task runs, and again here when it comes back. Needs the extra `ray`; a task that fails stops the fit
    with its error, and the same call resumes. `progress` counts shards.
    """
    import ray

    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False)

    def one(index: int) -> Shard:
        model = LocalModel.load(source, **load)
        chosen = (index, n_shards)
        return fit(model, prompts, settings, folder, routers=routers, shard=chosen, outlier_factor=outlier_factor)

    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    task = ray.remote(num_cpus=cpus_per_shard, num_gpus=gpus_per_shard, max_retries=3)(one)
    waiting = [task.remote(index) for index in range(n_shards)]
    shards: list[Shard] = []
    while waiting:
        done, waiting = ray.wait(waiting)
        shards.append(ray.get(done[0]))
        shards[-1].save(shard_path(folder, shards[-1].index, n_shards))
        if progress is not None:
            progress(len(shards), n_shards)
    return sorted(shards, key=lambda shard: shard.index)


def _run(model: LocalModel, rows: Sequence[Sequence[int]], shard: Shard, path: Path, progress: Progress | None) -> None:
    done, remaining = 0, shard.remaining
    total = len(remaining) * model.d_model

    def tell(n_rows: int) -> None:
        nonlocal done
        done += n_rows
        if progress is not None:
            progress(done, total)

    for index in remaining:
        sums, weights = prompt_sums(model, rows[index], shard.plan.settings, shard.routers or None, on_rows=tell)
        shard.add(index, rows[index], sums, weights)
        shard.save(path)
        write_convergence(shard, path.with_name("convergence.csv" if shard.count == 1 else f"{path.stem}.csv"))


def _plan(
    model: LocalModel,
    rows: Sequence[Sequence[int]],
    settings: JacobianSettings,
    routers: Mapping[int, Router] | None,
) -> FitPlan:
    hashes = "\n".join(f"{block} {router.sha256()}" for block, router in sorted((routers or {}).items()))
    versions = installed_versions()
    return FitPlan(
        model=model.source or "",
        revision=model.revision,
        dtype=str(model.hf.dtype).removeprefix("torch."),
        tokenizer_sha256=tokenizer_sha256(model.tokenizer),
        d_model=model.d_model,
        settings=settings,
        routers_sha256=hashlib.sha256(hashes.encode()).hexdigest() if hashes else None,
        n_experts=next(iter(routers.values())).n_experts if routers else 1,
        data_sha256=data_sha256(rows),
        n_prompts=len(rows),
        too_short=tuple(i for i, ids in enumerate(rows) if not _is_long_enough(ids, settings)),
        versions={name: versions[name] for name in ("torch", "transformers")},
    )


def _is_long_enough(ids: Sequence[int], settings: JacobianSettings) -> bool:
    return min(len(ids), settings.max_tokens) >= settings.skip_first + 2


def _shades(n: int) -> list[str]:
    """Light to dark blue, from early blocks to late."""
    return [f"#{int(170 - 150 * i / max(n - 1, 1)):02x}{int(200 - 130 * i / max(n - 1, 1)):02x}d0" for i in range(n)]
