"""Lens files: our own, and the three public formats.

    lens = read_lens("lens.safetensors")                              # ours
    lens = read_lens("lens.pt", model="Qwen/Qwen3-4B")                # a public one, which format is seen from its keys
    write_lens(lens, Path("lens.safetensors"))

Ours are safetensors with one JSON header and appear whole or not at all. The public ones are PyTorch archives; they
are opened memory-mapped and with `weights_only=True`, so that nothing in them can run:

    J        {"J": {block: [d, d]}, "n_prompts", "source_layers", "d_model"}      J-lens releases and their re-exports
    J/R pair the same with "provenance", "J" may be one tensor [n, d, d]          target, estimator, rules
    J++      {"parameters": {"jacobians": {block: [d, d]}}, "source_layers", "config"}
    sums     {"jacobian_sum": {block: [d, d]}, "position_records", "config"}      an unfinished J fit: sums over prompts
"""

import json
import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from pydantic import BaseModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mindscope.errors import MindscopeError
from mindscope.validation import Model, check, listing
from mindscope.whitebox.lens.lens import Estimator, Experts, Lens, LensMetadata
from mindscope.whitebox.lens.router import Router

_HEADER = "mindscope"
"""The one metadata key: several would be written in a random order, and equal fits would differ in their bytes."""


class _LensHeader(BaseModel):
    kind: str = "lens"
    lens: LensMetadata


class _RouterHeader(BaseModel):
    kind: str = "routers"
    model: str
    data_sha256: str
    seed: int


def write_lens(lens: Lens, path: Path, *, dtype: torch.dtype = torch.float32) -> None:
    """Write our own format; `dtype` is that of the matrices and experts. fp16 rounds near-ties of ranks apart."""
    tensors = {f"matrix.{block}": matrix.to(dtype) for block, matrix in lens.matrices.items()}
    for block, experts in lens.experts.items():
        tensors[f"experts.{block}"] = experts.maps.to(dtype)
        tensors[f"counts.{block}"] = experts.counts
        tensors[f"fallback.{block}"] = experts.fallback
    tensors |= router_tensors({block: experts.router for block, experts in lens.experts.items()})
    tensors |= {f"weights.{block}": weights for block, weights in lens.weights.items()}
    write_tensors(path, tensors, _LensHeader(lens=lens.metadata))


def read_lens(
    path: Path | str,
    *,
    model: str | None = None,
    revision: str | None = None,
    estimator: Estimator | None = None,
    target_block: int | None = None,
) -> Lens:
    """The lens in a file of ours or of a public format.

    Public files say less than ours, so `model`, its `revision`, `estimator` and `target_block` fill in what the file
    does not say. Without being told, a file of the first format is a J-lens, one of the third a J++ lens, and the
    target of maps from all blocks 0..n is block n + 1.

    Raises MindscopeError, with the file and the reason, for anything but a whole, finite, consistent lens, and when
    what the caller says contradicts the file.
    """
    path = Path(path)
    try:
        if _is_safetensors(path):
            lens = _read_own(path)
        else:
            lens = _read_public(_load_archive(path), model, revision, estimator, target_block)
        _require_finite(lens)
    except MindscopeError as error:
        raise MindscopeError(f"{path}: {error}") from None
    said = {"model": model, "revision": revision, "estimator": estimator, "target_block": target_block}
    for name, value in said.items():
        found = getattr(lens.metadata, name)
        if value is not None and found != value:
            raise MindscopeError(f"{path}: its {name} is {found!r}, not {value!r}")
    return lens


def write_jlens(lens: Lens, path: Path, *, dtype: torch.dtype = torch.float16) -> None:
    """Write the first public format with provenance, for tools that read J-lens releases."""
    meta = lens.metadata
    provenance = {
        "model_id": meta.model,
        "target_layer": meta.target_block,
        "skip_first": meta.skip_first,
        "n_prompts": meta.n_prompts,
        "config_json": json.dumps({"estimator": {"J": "standard", "R": "relp"}.get(meta.estimator, meta.estimator)}),
    }
    content = {
        "J": {block: matrix.to(dtype).clone() for block, matrix in lens.matrices.items()},
        "n_prompts": meta.n_prompts,
        "source_layers": list(lens.blocks),
        "d_model": lens.d_model,
        "provenance": provenance,
    }
    _write_whole(path, lambda name: torch.save(content, name))


def write_routers(routers: Mapping[int, Router], path: Path, *, model: str, data_sha256: str, seed: int) -> None:
    write_tensors(path, router_tensors(routers), _RouterHeader(model=model, data_sha256=data_sha256, seed=seed))


def read_routers(path: Path | str) -> dict[int, Router]:
    """Block -> router; raises MindscopeError when the file is not one of `write_routers`."""
    tensors, _ = read_tensors(Path(path), _RouterHeader, kind="routers")
    return routers_from(tensors)


def router_tensors(routers: Mapping[int, Router]) -> dict[str, torch.Tensor]:
    return {
        f"router.{block}.{name}": getattr(router, name)
        for block, router in routers.items()
        for name in ("mean", "components", "centroids")
    }


def routers_from(tensors: Mapping[str, torch.Tensor]) -> dict[int, Router]:
    blocks = sorted(int(name.split(".")[1]) for name in tensors if name.startswith("router.") and name.endswith("mean"))
    return {
        block: Router(*(tensors[f"router.{block}.{name}"] for name in ("mean", "components", "centroids")))
        for block in blocks
    }


def by_block(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[int, torch.Tensor]:
    """The tensors named `prefix.<block>`, ascending by block."""
    found = {int(name.split(".")[1]): tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")}
    return dict(sorted(found.items()))


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], header: BaseModel) -> None:
    """Write safetensors so that a crash at any moment leaves the old file or the new one, never part of one."""
    own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    _write_whole(path, lambda name: save_file(own, name, metadata={_HEADER: header.model_dump_json()}))


def read_tensors(path: Path, header: type[Model], *, kind: str) -> tuple[dict[str, torch.Tensor], Model]:
    """All tensors of a file of ours, memory-mapped, and its header.

    Raises MindscopeError when there is no such file, or it is cut short, not ours, or of another `kind`.
    """
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_HEADER)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise MindscopeError(f"there is no file {path}") from None
    except (OSError, SafetensorError) as error:
        raise MindscopeError(f"{path} is not a whole safetensors file ({error})") from None
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = {}
    if not isinstance(found, dict) or found.get("kind") != kind:
        is_one = (
            f"a file of {found['kind']!r}" if isinstance(found, dict) and "kind" in found else "not a mindscope file"
        )
        raise MindscopeError(f"{path} is {is_one}, and {kind!r} is needed")
    parsed, faults = check(header, found)
    if parsed is None:
        raise MindscopeError(listing(f"The header of {path}", faults))
    return tensors, parsed


def _write_whole(path: Path, save: Any) -> None:
    """`save(name)` into a temporary neighbour of `path`, which then takes its place."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    try:
        save(name)
        with open(name, "rb+") as file:
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _is_safetensors(path: Path) -> bool:
    """By content: eight bytes of header length, then a JSON object."""
    try:
        with open(path, "rb") as file:
            return file.read(9)[8:9] == b"{"
    except OSError as error:
        raise MindscopeError(f"cannot be read ({error.strerror})") from None


def _read_own(path: Path) -> Lens:
    tensors, header = read_tensors(path, _LensHeader, kind="lens")
    routers = routers_from(tensors)
    counts, fallback = by_block(tensors, "counts"), by_block(tensors, "fallback")
    experts = {
        block: Experts(maps, counts[block], fallback[block], routers[block])
        for block, maps in by_block(tensors, "experts").items()
    }
    return Lens(header.lens, by_block(tensors, "matrix"), experts=experts, weights=by_block(tensors, "weights"))


def _load_archive(path: Path) -> dict[str, Any]:
    if not zipfile.is_zipfile(path):
        raise MindscopeError("is neither safetensors nor a whole PyTorch archive; was the download cut short?")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except UnpicklingError as error:
        reason = str(error).split("\n")[0]
        raise MindscopeError(
            f"holds something other than tensors and plain values, and was not opened ({reason})"
        ) from None
    except (RuntimeError, OSError, ValueError, EOFError, KeyError) as error:
        raise MindscopeError(f"is not a whole PyTorch archive ({str(error).splitlines()[0]})") from None
    if not isinstance(content, dict):
        raise MindscopeError(f"holds a {type(content).__name__}; a lens file holds a dictionary")
    return content


def _read_public(
    content: Mapping[str, Any],
    model: str | None,
    revision: str | None,
    estimator: Estimator | None,
    target_block: int | None,
) -> Lens:
    config, provenance = _section(content, "config"), _section(content, "provenance")
    sources = content.get("source_layers", config.get("source_layers"))
    found: dict[str, Any] = {"revision": revision}
    if "parameters" in content:
        maps = _matrices(_section(content, "parameters").get("jacobians"), sources)
        found |= _from_config(config) | {"estimator": estimator or "J++"}
    elif "jacobian_sum" in content:
        n = len(content.get("position_records") or [])
        if n == 0:
            raise MindscopeError("holds sums without position_records, so it is unknown what to divide by")
        maps = {block: m.float() / n for block, m in _matrices(content["jacobian_sum"], sources).items()}
        found |= _from_config(config) | {"n_prompts": n, "estimator": estimator or "J"}
    elif "J" in content:
        maps = _matrices(content["J"], sources)
        found |= _from_provenance(provenance, estimator)
        found.setdefault("n_prompts", content.get("n_prompts"))
    else:
        raise MindscopeError(f"has the keys {', '.join(map(str, content))}, which are those of no lens format")
    stated = content.get("d_model", config.get("d_model"))
    actual = next(iter(maps.values())).shape[-1] if maps else None
    if stated is not None and stated != actual:
        raise MindscopeError(f"says d_model {stated}, and its matrices have {actual}")
    found["model"] = found.get("model") or model
    if found["model"] is None:
        raise MindscopeError("does not name its model; say which it is")
    if found.get("target_block") is None:
        found["target_block"] = target_block if target_block is not None else _next_block(maps)
    maps = _without_target(maps, found["target_block"])
    metadata, faults = check(LensMetadata, {name: value for name, value in found.items() if value is not None})
    if metadata is None:
        raise MindscopeError(listing("its description", faults))
    return Lens(metadata, maps)


def _section(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = content.get(key, {})
    if not isinstance(value, Mapping):
        raise MindscopeError(f"{key} is a {type(value).__name__}, not a dictionary")
    return value


def _from_config(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": config.get("hf_model_name"),
        "n_prompts": config.get("num_prompts_trained_on"),
        "rules": config.get("lrp_mode"),
        "skip_first": config.get("skip_first_n_positions"),
        "max_tokens": config.get("max_seq_len"),
    }


def _from_provenance(provenance: Mapping[str, Any], estimator: Estimator | None) -> dict[str, Any]:
    point = provenance.get("capture_point", "block_output")
    if point != "block_output":
        raise MindscopeError(f"was fitted at {point}; only lenses of block outputs can be read")
    try:
        described = json.loads(provenance.get("config_json") or "{}")
    except (ValueError, TypeError):
        raise MindscopeError("has a provenance.config_json that is not JSON") from None
    named = provenance.get("method") or (described.get("estimator") if isinstance(described, dict) else None)
    kinds: dict[Any, Estimator] = {
        "jpp": "J++",
        "J++": "J++",
        "relp": "R",
        "standard": "J",
        "logit": "logit",
        None: "J",
    }
    if named not in kinds:
        raise MindscopeError(f"names the estimator {named!r}; known are relp, standard and jpp")
    found: dict[str, Any] = {
        "model": provenance.get("model_id"),
        "target_block": provenance.get("target_layer"),
        "skip_first": provenance.get("skip_first"),
        "estimator": (estimator or "J") if named is None else kinds[named],
        "rules": provenance.get("lrp_mode"),
    }
    if provenance.get("n_prompts") is not None:
        found["n_prompts"] = provenance["n_prompts"]
    return found


def _matrices(maps: Any, sources: Sequence[int] | None) -> dict[int, torch.Tensor]:
    """Block -> matrix, all checked against `source_layers`."""
    if isinstance(maps, torch.Tensor) and maps.dim() == 3:
        if sources is None or len(sources) != len(maps):
            raise MindscopeError(f"holds {len(maps)} stacked matrices and source_layers {sources}; one each is needed")
        maps = dict(zip(sources, maps, strict=True))
    if not isinstance(maps, Mapping) or not maps:
        raise MindscopeError("holds no matrices")
    odd = [key for key in maps if not isinstance(key, int) or isinstance(key, bool)]
    if odd:
        raise MindscopeError(f"has the block {odd[0]!r}; blocks must be whole numbers, not {type(odd[0]).__name__}")
    if sources is not None and sorted(sources) != sorted(maps):
        raise MindscopeError(f"lists the source_layers {sorted(sources)}, and holds matrices of {sorted(maps)}")
    for block, matrix in maps.items():
        if not isinstance(matrix, torch.Tensor) or not matrix.is_floating_point():
            raise MindscopeError(f"has no matrix of real numbers at block {block}")
        if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1]:
            raise MindscopeError(f"has a matrix of shape {list(matrix.shape)} at block {block}; it must be square")
    return dict(maps)


def _without_target(maps: dict[int, torch.Tensor], target: Any) -> dict[int, torch.Tensor]:
    """Some files hold the target's own row of the stack: the identity, which says nothing."""
    if target in maps:
        matrix = maps[target].float()
        if not torch.equal(matrix, torch.eye(len(matrix))):
            raise MindscopeError(f"has a matrix other than the identity at its target block {target}")
        return {block: matrix for block, matrix in maps.items() if block != target}
    return maps


def _next_block(maps: Mapping[int, torch.Tensor]) -> int:
    if sorted(maps) != list(range(len(maps))):
        raise MindscopeError(f"holds blocks {sorted(maps)} and does not say which they lead to; give target_block")
    return len(maps)


def _require_finite(lens: Lens) -> None:
    for block, matrix in lens.matrices.items():
        if not torch.isfinite(matrix).all():
            raise MindscopeError(f"has a number that is not finite in the matrix of block {block}")
