"""Draws a run as one HTML page that needs nothing else: no network, no script, no font.

    write_report(read_run(folder), Path("report.html"))

Whatever a model or a row contains is shown as text: escaped, with invisible characters made visible. The same
run gives the same bytes.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mindscope.report.html import extra, markup, template, write_page
from mindscope.report.rollouts import Rollout
from mindscope.report.runs import Run
from mindscope.report.summary import (
    NO_OUTCOME,
    Summary,
    condition_of,
    further_metrics,
    summarise,
)

SAMPLES = 10
_SLOWEST = 5
_FAILURES_SHOWN = 20


def write_report(run: Run, path: Path) -> None:
    """Write the page of `run` to `path`, whole or not at all.

    Raises MindscopeError when the `report` extra is not installed or `path` cannot be written.
    """
    write_page(render(run), path)


def render(run: Run) -> str:
    """The page as one string of HTML. Raises MindscopeError when the `report` extra is not installed."""
    page, figure = template("mindscope.report", "page.html.jinja"), extra("mindscope.report.figure")
    summary = summarise(run)
    plot = ""
    if any(entry.reward.value is not None for entry in summary.conditions):
        rows = [(entry.condition, entry.reward) for entry in summary.conditions]
        plot = figure.interval_plot(rows, axis="mean reward, 95 % interval")
    return page.render(
        summary=summary,
        what_was_run=what_was_run(run),
        plot=markup(plot),
        further_metrics=further_metrics(summary),
        failed=[rollout for rollout in run.rollouts if rollout.failure][:_FAILURES_SHOWN],
        slowest=slowest(run.rollouts),
        samples=samples(run.rollouts, summary),
        condition_of=condition_of,
        no_outcome=NO_OUTCOME,
    )


def what_was_run(run: Run) -> list[tuple[str, str]]:
    """Label and text of everything known about how the run was made; what nobody recorded is said."""
    manifest = run.manifest
    entries: list[tuple[str, Any]] = [
        ("environment", run.environment),
        ("model", run.model),
        ("endpoint", run.base_url),
        ("sampling", run.sampling or "left to the server"),
        ("arguments", run.env_args or "defaults"),
        ("verifiers", run.verifiers),
    ]
    if manifest is not None:
        libraries = {name: version for name, version in manifest.versions.items() if name != "verifiers"}
        entries += [
            ("environment version", manifest.environment_version),
            ("mindscope", manifest.mindscope_version),
            ("other versions", libraries),
            ("stimuli sha256", manifest.data_sha256 or None),
            ("started", manifest.started),
        ]
    return [(label, "not recorded" if value is None else _settings(value)) for label, value in entries]


def slowest(rollouts: Iterable[Rollout]) -> list[Rollout]:
    """The rollouts that took longest, longest first."""
    timed = [rollout for rollout in rollouts if rollout.duration_s is not None]
    return sorted(timed, key=lambda rollout: (-(rollout.duration_s or 0.0), rollout.item))[:_SLOWEST]


def samples(rollouts: Iterable[Rollout], summary: Summary) -> list[Rollout]:
    """Up to ten scored rollouts, every outcome in turn. Within an outcome a hash of the content sets the
    order, so that neither the file's order nor the reward picks them."""
    groups: dict[str, list[Rollout]] = {entry.outcome: [] for entry in summary.outcomes}
    for rollout in rollouts:
        if rollout.failure is None:
            groups.setdefault(rollout.outcome or NO_OUTCOME, []).append(rollout)
    queues = [sorted(group, key=_lot) for group in groups.values()]
    turns = [queue[turn] for turn in range(SAMPLES) for queue in queues if turn < len(queue)]
    return turns[:SAMPLES]


def _lot(rollout: Rollout) -> str:
    content = json.dumps([rollout.item, [message.text for message in rollout.reply]])
    return hashlib.sha256(content.encode()).hexdigest()


def _settings(value: str | dict[str, Any]) -> str:
    if isinstance(value, str):
        return value
    return "\n".join(
        f"{name}: {entry if isinstance(entry, str) else json.dumps(entry, ensure_ascii=False)}"
        for name, entry in value.items()
    )
