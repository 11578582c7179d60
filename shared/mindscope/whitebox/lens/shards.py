"""Shards of a fit: sums over some of the prompts, which merge by addition into the fit of all of them.

    shard.add(3, ids, *prompt_sums(model, ids, plan.settings))
    shard.save(path)                        # whole or absent at every moment; Shard.load(path) goes on from there
    merge([a, b]).lens()

Shard i of n takes every n-th kept prompt, from the i-th on. Sums are fp32, so merging equals the single fit up to the
order of additions: 1e-6 relative, not bit for bit. A fit resumed from a file equals an uninterrupted one bit for bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from mindscope.errors import MindscopeError
from mindscope.validation import listing, shown
from mindscope.whitebox.lens.files import by_block, read_tensors, router_tensors, routers_from, write_tensors
from mindscope.whitebox.lens.jacobian import JacobianSettings, Sums, Weights, prompt_sha256
from mindscope.whitebox.lens.lens import MIN_POSITIONS, Estimator, Experts, Lens, LensMetadata, pooled_map
from mindscope.whitebox.lens.router import Router


class FitPlan(BaseModel):
    """All that decides a fit. Shards are added only when their plans are equal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    revision: str | None
    dtype: str
    tokenizer_sha256: str
    d_model: int
    settings: JacobianSettings
    routers_sha256: str | None
    """Of every block's router; None for one map a block."""
    n_experts: int
    data_sha256: str
    """Of all prompts, those of other shards and those left out included."""
    n_prompts: int
    too_short: tuple[int, ...] = ()
    """Indices of prompts without a kept position."""
    outliers: tuple[int, ...] = ()
    """Indices of prompts whose Jacobian is far larger than the others'."""
    versions: dict[str, str]

    @property
    def kept_prompts(self) -> list[int]:
        left_out = {*self.too_short, *self.outliers}
        return [i for i in range(self.n_prompts) if i not in left_out]

    @property
    def estimator(self) -> Estimator:
        if self.routers_sha256 is not None:
            return "J++"
        return "J" if self.settings.rules == "none" else "R"

    def differences(self, other: "FitPlan") -> list[str]:
        """Every field in which two plans differ, as `field: one != other`; settings field by field."""
        mine, theirs = _flat(self), _flat(other)
        return [f"{name}: {shown(mine[name])} != {shown(theirs[name])}" for name in mine if mine[name] != theirs[name]]


class PromptRecord(BaseModel):
    """What one prompt did to the fit. `norms` holds |J_p|_F / sqrt(d_model) of each block, in the plan's order, and
    `shifts` how far the mean moved when it came, relative to the mean before; None for a shard's first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    index: int
    sha256: str
    n_tokens: int
    norms: tuple[float, ...]
    shifts: tuple[float | None, ...]


class _Header(BaseModel):
    kind: str = "shard"
    plan: FitPlan
    index: int
    count: int
    records: list[PromptRecord]


@dataclass
class Shard:
    """The sums of shard `index` of `count`: block -> [E, d, d] with weights [E], E = 1 without routers."""

    plan: FitPlan
    index: int = 0
    count: int = 1
    routers: Mapping[int, Router] = field(default_factory=dict)
    sums: Sums = field(default_factory=dict)
    weights: Weights = field(default_factory=dict)
    records: list[PromptRecord] = field(default_factory=list)

    @property
    def assigned(self) -> list[int]:
        """Indices of this shard's prompts, in the order they are added."""
        return self.plan.kept_prompts[self.index :: self.count]

    @property
    def remaining(self) -> list[int]:
        done = {record.index for record in self.records}
        return [i for i in self.assigned if i not in done]

    def add(self, index: int, ids: Sequence[int], sums: Sums, weights: Weights) -> PromptRecord:
        """Add one prompt's sums, which are fp32 on the CPU.

        Raises MindscopeError, with the prompt and block, when one is not finite; then nothing is added.
        """
        for block, total in sums.items():
            if not torch.isfinite(total).all():
                raise MindscopeError(
                    f"prompt {index} has a Jacobian that is not finite at block {block}; load the model as float32"
                )
        norms, shifts = [], []
        for block, total in sums.items():
            norms.append(pooled_map(total, weights[block]).norm().item() / self.plan.d_model**0.5)
            shifts.append(self._accumulate(block, total, weights[block]))
        record = PromptRecord(
            index=index, sha256=prompt_sha256(ids), n_tokens=len(ids), norms=tuple(norms), shifts=tuple(shifts)
        )
        self.records.append(record)
        return record

    def _accumulate(self, block: int, total: torch.Tensor, weights: torch.Tensor) -> float | None:
        if block not in self.sums:
            self.sums[block], self.weights[block] = total.clone(), weights.clone()
            return None
        before = pooled_map(self.sums[block], self.weights[block])
        self.sums[block] += total
        self.weights[block] += weights
        after = pooled_map(self.sums[block], self.weights[block])
        return ((after - before).norm() / before.norm()).item()

    def lens(self, *, min_positions: int = MIN_POSITIONS) -> Lens:
        """The means, as a lens; experts with fewer than `min_positions` positions take the pooled map.

        Raises MindscopeError while prompts remain.
        """
        if self.remaining or not self.records:
            raise MindscopeError(
                f"the fit is not finished: {len(self.remaining)} of {len(self.assigned)} prompts remain"
            )
        plan = self.plan
        metadata = LensMetadata(
            model=plan.model,
            revision=plan.revision,
            tokenizer_sha256=plan.tokenizer_sha256,
            estimator=plan.estimator,
            target_block=plan.settings.target_block,
            rules=plan.settings.rules,
            skip_first=plan.settings.skip_first,
            max_tokens=plan.settings.max_tokens,
            data_sha256=plan.data_sha256,
            n_prompts=len(self.records),
            versions=plan.versions,
        )
        pooled = {block: pooled_map(self.sums[block], self.weights[block]) for block in self.sums}
        experts = {
            block: Experts.from_sums(self.sums[block], self.weights[block], router, min_positions)
            for block, router in self.routers.items()
        }
        return Lens(metadata, pooled, experts=experts)

    def save(self, path: Path) -> None:
        """Write everything; at every moment `path` is the file before or the file after."""
        tensors = {f"sums.{block}": total for block, total in self.sums.items()}
        tensors |= {f"weights.{block}": weights for block, weights in self.weights.items()}
        tensors |= router_tensors(self.routers)
        header = _Header(plan=self.plan, index=self.index, count=self.count, records=self.records)
        write_tensors(path, tensors, header)

    @staticmethod
    def load(path: Path) -> "Shard":
        """Raises MindscopeError when the file is not a whole shard."""
        tensors, header = read_tensors(path, _Header, kind="shard")
        return Shard(
            plan=header.plan,
            index=header.index,
            count=header.count,
            routers=routers_from(tensors),
            sums={block: total.clone() for block, total in by_block(tensors, "sums").items()},
            weights={block: weights.clone() for block, weights in by_block(tensors, "weights").items()},
            records=header.records,
        )


def merge(shards: Sequence[Shard]) -> Shard:
    """The shard of all prompts, from shards that hold each of them exactly once, in any order.

    Raises MindscopeError that lists every reason not to: plans that differ, with each field; unfinished shards;
    prompts that are in two shards, or in none.
    """
    if not shards:
        raise MindscopeError("there are no shards to merge; give at least one")
    plan = shards[0].plan
    names = [f"shard {shard.index} of {shard.count}" for shard in shards]
    faults: list[str] = []
    for shard, name in zip(shards, names, strict=True):
        faults += [f"{names[0]} and {name} differ in {one}" for one in plan.differences(shard.plan)]
        if shard.remaining:
            faults.append(f"{name} is not finished: {len(shard.remaining)} of {len(shard.assigned)} prompts remain")
    found = [record.index for shard in shards for record in shard.records]
    if twice := sorted({i for i in found if found.count(i) > 1}):
        faults.append(f"prompts {shown(twice)} are in more than one shard")
    if absent := sorted(set(plan.kept_prompts) - set(found)):
        faults.append(f"prompts {shown(absent)} are in no shard; is one of the {shards[0].count} missing?")
    if faults:
        raise MindscopeError(listing("The shards cannot be merged", faults))
    ordered = sorted((shard for shard in shards if shard.records), key=lambda shard: shard.index)
    merged = Shard(plan, routers=ordered[0].routers, records=[r for shard in ordered for r in shard.records])
    for block in ordered[0].sums:
        merged.sums[block] = torch.stack([shard.sums[block] for shard in ordered]).sum(0)
        merged.weights[block] = torch.stack([shard.weights[block] for shard in ordered]).sum(0)
    return merged


def _flat(plan: FitPlan) -> dict[str, Any]:
    fields = plan.model_dump()
    settings = fields.pop("settings")
    return fields | {f"settings.{name}": value for name, value in settings.items()}
