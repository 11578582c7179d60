"""`mindscope lens readout` and `mindscope lens evaluate`: what lenses show of a text, and how well they show it."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mindscope.cli.score import progress_line
from mindscope.errors import MindscopeError
from mindscope.report.text import interval_text, table, value_text

if TYPE_CHECKING:
    from mindscope.statistics import Estimate
    from mindscope.whitebox.lens.lens import Lens
    from mindscope.whitebox.model import LocalModel

LENS_HELP = "A lens file, ours or a public one that names its model; `lens convert` makes one of any other."

ModelOption = Annotated[str, typer.Option("--model", "-m", help="Hub id, folder, or embedded.")]
BlocksOption = Annotated[str | None, typer.Option(help="As 0-5,8. [default: all that the lenses have]")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")]


class Side(StrEnum):
    """Which of the items are evaluated: those that expert weights are not tuned on, those that are, or all."""

    held_out = "held-out"
    tuning = "tuning"
    all = "all"


def readout(
    prompt: Annotated[str, typer.Argument(help="The text to read.")],
    model: ModelOption,
    lens: Annotated[Path | None, typer.Option(help=f"{LENS_HELP} [default: the logit lens]")] = None,
    blocks: BlocksOption = None,
    position: Annotated[int, typer.Option(help="The token to show in the table; from the end when negative.")] = -1,
    top: Annotated[int, typer.Option(min=1, help="Tokens to show.")] = 10,
    unfiltered: Annotated[
        bool, typer.Option("--unfiltered", help="Show tokens without a letter or digit too.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write the grid of all blocks and positions to this page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say which tokens a lens reads in a text: a row a block, the most probable first."""
    from mindscope.report.lens_grid import format_text, write_grid
    from mindscope.whitebox.lens.grid import read_grid

    loaded, chosen = _load(model, [lens])
    wanted = None if blocks is None else block_numbers(blocks)
    positions = [position] if html is None else None
    grid = read_grid(loaded, chosen[0], prompt, blocks=wanted, positions=positions, n=top, filtered=not unfiltered)
    shown = grid if html is None else grid.at(position)
    if html is not None:
        write_grid(grid, html)
    print(json.dumps(shown.to_dict(), ensure_ascii=False) if as_json else format_text(shown))
    if html is not None and not as_json:
        print(f"\nwrote {html}")


def evaluate(
    items: Annotated[
        Path, typer.Argument(help="JSONL with task, name, prompt, intermediates and, optionally, position.")
    ],
    model: ModelOption,
    lens: Annotated[list[Path] | None, typer.Option(help=f"{LENS_HELP} May be given several times.")] = None,
    blocks: BlocksOption = None,
    k: Annotated[int, typer.Option("-k", min=1, help="An intermediate counts when it ranks this high or higher.")] = 10,
    side: Annotated[
        Side, typer.Option(help="Items: those no weights were tuned on, those they were, or all.")
    ] = Side.held_out,
    seed: Annotated[int, typer.Option(help="Of the split into tuning and held-out items.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Say how often lenses show what the items pass through, beside the logit lens: recall@k with 95 % intervals."""
    from mindscope.whitebox.lens.recall import gain, item_ranks, recall
    from mindscope.whitebox.lens.weights import read_items, split

    paths: list[Path | None] = [None, *(lens or [])]
    loaded, lenses = _load(model, paths)
    read = read_items(items, loaded)
    tuning, held_out = split(read, seed=seed)
    used = {Side.held_out: held_out, Side.tuning: tuning, Side.all: read}[side]
    common = [block for block in lenses[0].blocks if all(block in one.blocks for one in lenses)]
    wanted = common if blocks is None else block_numbers(blocks)
    found = item_ranks(loaded, lenses, used, wanted, progress=progress_line("read"))
    names = ["logit" if path is None else path.stem for path in paths]
    recalls = [recall(ranks, k) for ranks in found]
    gains = [gain(ranks, found[0], k) for ranks in found]
    if as_json:
        results = [
            {
                "lens": name,
                "file": None if path is None else str(path),
                "estimator": one.metadata.estimator,
                "macro": each.macro.model_dump(),
                "over_logit": over.model_dump(),
                "tasks": {task: estimate.model_dump() for task, estimate in each.tasks.items()},
                "by_block": dict(zip(wanted, each.by_block, strict=True)),
            }
            for name, path, one, each, over in zip(names, paths, lenses, recalls, gains, strict=True)
        ]
        print(json.dumps({"model": model, "k": k, "side": side.value, "items": len(used), "lenses": results}))
        return
    tasks = list(recalls[0].tasks)
    header = ["lens", "macro", "95 % interval", "over logit", "95 % interval", "best block", *tasks]
    rows = []
    for name, each, over in zip(names, recalls, gains, strict=True):
        peak = max(range(len(wanted)), key=each.by_block.__getitem__)
        best = f"{wanted[peak]} ({each.by_block[peak]:.3f})"
        rows.append([name, *_pair(each.macro), *_pair(over), best, *(value_text(each.tasks[t].value) for t in tasks)])
    counts = ", ".join(f"{task} {recalls[0].tasks[task].n}" for task in tasks)
    print(f"recall@{k}, best of {len(wanted)} blocks, {len(used)} {side.value} items ({counts})")
    print(table(header, rows))
    print("Macro: mean over tasks. Intervals: bootstrap over items; over logit, item by item.")


def block_numbers(text: str) -> list[int]:
    """The blocks of `0-5,8`; raises MindscopeError that shows the right form."""
    found: list[int] = []
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise MindscopeError(f"--blocks is {text!r}; write numbers and ranges, as 0-5,8")
        found += range(int(first), int(last if dash else first) + 1)
    return found


def _load(model: str, paths: list[Path | None]) -> "tuple[LocalModel, list[Lens]]":
    """The model, and the lens of each path, the logit lens for None. Lens files are read first: they fail sooner."""
    from mindscope.whitebox.lens.files import read_lens
    from mindscope.whitebox.lens.lens import Lens
    from mindscope.whitebox.model import LocalModel

    read = {path: read_lens(path) for path in paths if path is not None}
    loaded = LocalModel.load(model)
    return loaded, [Lens.logit(loaded) if path is None else read[path] for path in paths]


def _pair(estimate: "Estimate") -> tuple[str, str]:
    return value_text(estimate.value), interval_text(estimate)
