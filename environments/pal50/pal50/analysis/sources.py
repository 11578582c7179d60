"""Reads run folders for the analysis.

analyse(read_sources([Path("outputs/pal50--model"), Path("outputs/pal50--model--none")]))
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mindscope.report.runs import read_run

from pal50.analysis.runs import Source
from pal50.items import read_items


def read_sources(folders: Sequence[Path]) -> list[Source]:
    """The item tables of runs (folders, or the results files in them), each named by its folder.

    Raises MindscopeError when a folder holds no run of pal50, or its files are not what verifiers write.
    """
    paths = [folder.resolve() for folder in folders]
    sources = []
    for name, path in zip(_names([path if path.is_dir() else path.parent for path in paths]), paths, strict=True):
        run = read_run(path)
        failed = sum(rollout.failure is not None for rollout in run.rollouts)
        sources.append(Source(name, read_items(path), model=run.model, failed_rollouts=failed))
    return sources


def _names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path, and as many parts before it as tell the paths apart."""
    names = [path.name for path in paths]
    depth = 1
    while max(Counter(names).values(), default=1) > 1 and depth < max(len(path.parts) for path in paths):
        depth += 1
        names = ["/".join(path.parts[-depth:]) for path in paths]
    return names
