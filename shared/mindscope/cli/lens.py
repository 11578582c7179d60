"""`mindscope lens`: fit lenses, merge their shards, weight their experts, read and convert their files.

mindscope lens fit texts.jsonl -m MODEL -o fit                                  # the J-lens
mindscope lens fit texts.jsonl -m MODEL -o fit --rules relp                     # the R-lens
mindscope lens fit-router texts.jsonl -m MODEL -o routers.safetensors           # J++: three steps
mindscope lens fit texts.jsonl -m MODEL -o fit --rules relp --routers routers.safetensors
mindscope lens weights fit/lens.safetensors items.jsonl -m MODEL -o lens.safetensors
"""

import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from mindscope.cli.score import progress_line
from mindscope.errors import MindscopeError

if TYPE_CHECKING:
    from mindscope.whitebox.lens.jacobian import JacobianSettings
    from mindscope.whitebox.lens.shards import Shard
    from mindscope.whitebox.model import LocalModel

app = typer.Typer(
    name="lens", help="Lenses on a local model's residual stream: logit, J, R and J++.", no_args_is_help=True
)

Texts = Annotated[Path, typer.Argument(help="JSONL with a field text, or plain text, one text a line.")]
ModelName = Annotated[str, typer.Option("--model", "-m", help="Hub id, folder, or embedded.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")]
Dtype = Annotated[str, typer.Option(help="Type of the weights: float32, bfloat16, float16 or float64.")]
Device = Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, cuda:1, ...")]
Blocks = Annotated[str | None, typer.Option(help="Source blocks, as 0-8,12; all below the target when left out.")]
Target = Annotated[int | None, typer.Option(help="Target block; the last when left out.")]
Skip = Annotated[int, typer.Option(min=0, help="Positions dropped at each prompt's start.")]
MaxTokens = Annotated[int, typer.Option(min=2, help="Prompts are cut to this many tokens.")]
MinCharacters = Annotated[int, typer.Option(min=1, help="Shorter texts are passed over.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command("fit-router")
def fit_router(
    texts: Texts,
    model: ModelName,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write, .safetensors.")],
    prompts: Annotated[int, typer.Option(min=1, help="Number of texts.")] = 1000,
    experts: Annotated[int, typer.Option(min=1, help="Kinds of positions.")] = 8,
    components: Annotated[int, typer.Option(min=1, help="Leading directions that tell kinds apart.")] = 64,
    seed: Annotated[int, typer.Option(help="Of the k-means seeding.")] = 0,
    memory_gb: Annotated[float, typer.Option(help="Activations held at a time; less means more passes.")] = 2.0,
    blocks: Blocks = None,
    target: Target = None,
    skip_first: Skip = 16,
    max_tokens: MaxTokens = 128,
    min_characters: MinCharacters = 600,
    revision: Revision = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
) -> None:
    """Fit the routers of a J++ lens: which kinds of positions get a Jacobian of their own."""
    from mindscope.whitebox.lens.files import write_routers
    from mindscope.whitebox.lens.fit import fit_routers, read_prompts
    from mindscope.whitebox.lens.jacobian import data_sha256
    from mindscope.whitebox.model import LocalModel

    local = LocalModel.load(model, revision=revision, dtype=dtype, device=device)
    settings = _settings(local, blocks, target, skip_first=skip_first, max_tokens=max_tokens)
    rows = read_prompts(texts, local, n=prompts, max_tokens=max_tokens, min_characters=min_characters)
    routers = fit_routers(
        local,
        rows,
        settings,
        n_experts=experts,
        n_components=components,
        seed=seed,
        memory_gb=memory_gb,
        progress=progress_line("routed blocks"),
    )
    write_routers(routers, output, model=model, data_sha256=data_sha256(rows), seed=seed)
    print(f"wrote {output}")


@app.command()
def fit(
    texts: Texts,
    model: ModelName,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the fit; the same command resumes in it.")],
    prompts: Annotated[int, typer.Option(min=1, help="Number of texts.")] = 64,
    rules: Annotated[str, typer.Option(help="Relevance rules: none, relp, or relp+moe.")] = "none",
    routers: Annotated[Path | None, typer.Option(help="File of fit-router, for a J++ lens.")] = None,
    shard: Annotated[str | None, typer.Option(help="Fit this part only, as 0/4; merge the parts later.")] = None,
    ray: Annotated[int | None, typer.Option(min=1, help="Fit this many shards as Ray tasks, and merge them.")] = None,
    cpus_per_shard: Annotated[float, typer.Option(help="Of each Ray task.")] = 1,
    gpus_per_shard: Annotated[float, typer.Option(help="Of each Ray task.")] = 0,
    rows_per_pass: Annotated[
        int, typer.Option(min=1, help="Rows of the Jacobian computed at a time: bounds the memory.")
    ] = 16,
    outlier_factor: Annotated[
        float, typer.Option(help="Leave out prompts whose norm is more than this many times the median.")
    ] = 5.0,
    blocks: Blocks = None,
    target: Target = None,
    skip_first: Skip = 16,
    max_tokens: MaxTokens = 128,
    min_characters: MinCharacters = 600,
    revision: Revision = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
) -> None:
    """Fit a lens; a checkpoint after every prompt lets the same command resume at any time."""
    from mindscope.whitebox.lens import fit as fitting
    from mindscope.whitebox.lens.files import read_routers
    from mindscope.whitebox.lens.shards import merge
    from mindscope.whitebox.model import LocalModel

    if ray is not None and shard is not None:
        raise MindscopeError("give --ray or --shard, not both: Ray fits all shards")
    _log_to_stderr()
    local = LocalModel.load(model, revision=revision, dtype=dtype, device=device)
    settings = _settings(
        local, blocks, target, skip_first=skip_first, max_tokens=max_tokens, rules=rules, rows_per_pass=rows_per_pass
    )
    rows = fitting.read_prompts(texts, local, n=prompts, max_tokens=max_tokens, min_characters=min_characters)
    known = read_routers(routers) if routers is not None else None
    if ray is not None:
        parts = fitting.fit_on_ray(
            model,
            rows,
            settings,
            output,
            n_shards=ray,
            routers=known,
            outlier_factor=outlier_factor,
            cpus_per_shard=cpus_per_shard,
            gpus_per_shard=gpus_per_shard,
            progress=progress_line("fitted shards"),
            revision=revision,
            dtype=dtype,
            device=device,
        )
        _finish(merge(parts), output)
        return
    index, count = _shard(shard)
    result = fitting.fit(
        local,
        rows,
        settings,
        output,
        routers=known,
        shard=(index, count),
        outlier_factor=outlier_factor,
        progress=progress_line("fitted rows"),
    )
    if count == 1:
        _finish(result, output)
    else:
        print(f"wrote {fitting.shard_path(output, index, count)}; when all {count} are done: mindscope lens merge")


@app.command()
def merge(
    shards: Annotated[list[Path], typer.Argument(help="The shards' files, all of them, in any order.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the lens and its convergence.")],
) -> None:
    """Add up the shards of one fit, and write its lens."""
    from mindscope.whitebox.lens.shards import Shard
    from mindscope.whitebox.lens.shards import merge as add_up

    output.mkdir(parents=True, exist_ok=True)
    _finish(add_up([Shard.load(path) for path in shards]), output)


@app.command()
def weights(
    lens: Annotated[Path, typer.Argument(help="A lens fitted with routers.")],
    items: Annotated[Path, typer.Argument(help="JSONL: task, name, prompt, intermediates, position.")],
    model: ModelName,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write, .safetensors.")],
    k: Annotated[int, typer.Option(min=1, help="An intermediate counts as found among the k most probable.")] = 10,
    steps: Annotated[int, typer.Option(min=0, help="Of Adam, from each start.")] = 200,
    fraction: Annotated[float, typer.Option(min=0, max=1, help="Of the items to tune on; the rest is held out.")] = 0.2,
    seed: Annotated[int, typer.Option(help="Of the split.")] = 0,
    revision: Revision = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Weight a J++ lens's experts so that known intermediates rank among the first k."""
    from mindscope.whitebox.lens.files import read_lens, write_lens
    from mindscope.whitebox.lens.weights import fit_weights, read_items, split
    from mindscope.whitebox.model import LocalModel

    local = LocalModel.load(model, revision=revision, dtype=dtype, device=device)
    fitted = read_lens(lens)
    tuning, held_out = split(read_items(items, local), fraction=fraction, seed=seed)
    found = fit_weights(local, fitted, tuning, k=k, steps=steps, progress=progress_line("weighted blocks"))
    write_lens(fitted.with_weights({block: one.weights for block, one in found.items()}), output)
    if as_json:
        rows = {
            block: {
                "weights": one.weights.tolist(),
                "pass_at_k": one.pass_at_k,
                "surrogate": one.surrogate,
                "start": one.start,
                "step": one.step,
            }
            for block, one in found.items()
        }
        report = {"lens": str(output), "k": k, "n_tuning": len(tuning), "n_held_out": len(held_out), "blocks": rows}
        print(json.dumps(report, indent=2))
        return
    print(f"tuned on {len(tuning)} items, {len(held_out)} held out; pass@{k} on the tuning items:")
    for block, one in found.items():
        numbers = " ".join(f"{w:+.2f}" for w in one.weights.tolist())
        print(f"block {block:3d}  {one.pass_at_k:.3f}  {numbers}  ({one.start}, step {one.step})")
    print(f"wrote {output}")


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="A lens of ours or of a public format.")],
    output: Annotated[Path, typer.Argument(help=".safetensors for our format, .pt for a J-lens release.")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="Its model, where the file does not say.")] = None,
    revision: Revision = None,
    estimator: Annotated[str | None, typer.Option(help="J, R or J++, where the file does not say.")] = None,
    target: Annotated[int | None, typer.Option(help="Its target block, where the file does not say.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32 or float16; float32 for ours, float16 for a release when left out.")
    ] = None,
) -> None:
    """Convert a lens file. Nothing in a file from elsewhere is run."""
    import torch

    from mindscope.whitebox.lens.files import read_lens, write_jlens, write_lens
    from mindscope.whitebox.lens.lens import Estimator

    kinds = get_args(Estimator)
    if estimator is not None and estimator not in kinds:
        raise MindscopeError(f"--estimator is {estimator!r}; it is one of {', '.join(kinds)}")
    types = {"float32": torch.float32, "float16": torch.float16}
    if dtype is not None and dtype not in types:
        raise MindscopeError(f"--dtype is {dtype!r}; it is one of {', '.join(types)}")
    writers: dict[str, Any] = {".safetensors": write_lens, ".pt": write_jlens}
    if output.suffix not in writers:
        raise MindscopeError(f"{output}: the name must end in .safetensors or .pt, which says the format")
    named: Any = estimator
    lens = read_lens(source, model=model, revision=revision, estimator=named, target_block=target)
    writers[output.suffix](lens, output, **({"dtype": types[dtype]} if dtype else {}))
    print(f"wrote {output}: the {lens.metadata.estimator} lens of {lens.metadata.model}")


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="A lens of ours or of a public format.")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="Its model, where the file does not say.")] = None,
    target: Annotated[int | None, typer.Option(help="Its target block, where the file does not say.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a lens file, and say what is in it and how far each block's map is from the identity."""
    import torch

    from mindscope.whitebox.lens.files import read_lens
    from mindscope.whitebox.lens.lens import listed

    lens = read_lens(path, model=model, target_block=target)
    identity = torch.eye(lens.d_model)
    distances = {block: ((lens.matrix(block) - identity).norm() / identity.norm()).item() for block in lens.blocks}
    described = lens.metadata.model_dump()
    if as_json:
        experts = {block: experts.counts.tolist() for block, experts in lens.experts.items()}
        content = {
            "d_model": lens.d_model,
            "blocks": list(lens.blocks),
            "distance_from_identity": distances,
            "positions_per_expert": experts,
            "weights": {block: w.tolist() for block, w in lens.weights.items()},
        }
        print(json.dumps({**described, **content}, indent=2))
        return
    for name, value in described.items():
        print(f"{name:18} {value if value is not None else 'not said'}")
    print(f"{'d_model':18} {lens.d_model}\n{'blocks':18} {listed(lens.blocks)}")
    print("block  |J - I| / |I|" + ("  positions of each expert" if lens.experts else ""))
    for block, distance in distances.items():
        counts = " ".join(map(str, lens.experts[block].counts.tolist())) if block in lens.experts else ""
        print(f"{block:5d}  {distance:13.3f}  {counts}".rstrip())


def block_numbers(text: str) -> tuple[int, ...]:
    """The numbers in a text such as 0-8,12, ascending; raises MindscopeError when it is not of that form."""
    numbers: set[int] = set()
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise MindscopeError(f"blocks is {text!r}; write numbers and ranges, as 0-8,12")
        numbers.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(numbers))


def _settings(model: "LocalModel", blocks: str | None, target: int | None, **others: Any) -> "JacobianSettings":
    from mindscope.validation import parse
    from mindscope.whitebox.lens.jacobian import JacobianSettings

    end = model.n_blocks - 1 if target is None else target
    sources = tuple(range(end)) if blocks is None else block_numbers(blocks)
    settings = parse(JacobianSettings, {"blocks": sources, "target_block": end, **others}, subject="The fit's settings")
    settings.check(model)
    return settings


def _shard(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 1
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal()):
        raise MindscopeError(f"--shard is {text!r}; write the shard's number from 0 and how many there are, as 0/4")
    return int(index), int(count)


def _finish(shard: "Shard", folder: Path) -> None:
    """The lens, its convergence, and where they are."""
    from mindscope.whitebox.lens.files import write_lens
    from mindscope.whitebox.lens.fit import draw_convergence, write_convergence

    lens = shard.lens()
    path = folder / "lens.safetensors"
    write_lens(lens, path)
    write_convergence(shard, folder / "convergence.csv")
    try:
        draw_convergence(shard, folder / "convergence.png")
    except ModuleNotFoundError as error:
        print(
            f"no convergence.png, since {error.name} is not installed: pip install 'mindscope[report]'", file=sys.stderr
        )
    left_out = len(shard.plan.too_short) + len(shard.plan.outliers)
    print(f"wrote {path}: the {lens.metadata.estimator} lens of {lens.metadata.n_prompts} prompts, {left_out} left out")
    for block, experts in lens.experts.items():
        if few := int(experts.fallback.sum()):
            print(
                f"block {block}: {few} of {len(experts.counts)} experts had too few positions, and take the pooled map"
            )


def _log_to_stderr() -> None:
    logger = logging.getLogger("mindscope.lens")
    if not logger.handlers:
        logger.addHandler(logging.StreamHandler())
    logger.setLevel(logging.INFO)
