"""The analysis as plain text for a terminal."""

from mindscope.report.text import interval_text, table, value_text

from pal50.analysis.power import Plan
from pal50.analysis.runs import Analysis
from pal50.analysis.sections import Section, contrast_section, name_of, overview, run_sections


def format_text(analysis: Analysis) -> str:
    """Everything in `analysis`, safe to print whatever the run's files contain."""
    parts = []
    for run in analysis.runs:
        title = " · ".join(name_of(part) for part in (run.name, run.model) if part)
        parts += ["\n".join([title, "=" * len(title), *overview(run)]), *map(_section, run_sections(run))]
    parts += [_section(contrast_section(contrast)) for contrast in analysis.contrasts]
    return "\n\n".join(parts)


def format_plan(plan: Plan) -> str:
    """What `participants_needed` found, as sentences."""
    check = plan.simulated_power
    lines = [
        f"To tell {plan.first:g} from {plan.second:g} with {plan.power:.0%} power (two-sided, alpha {plan.alpha:g}):",
        f"  {plan.trials} trials a group (normal approximation, design effect {plan.design_effect:g}),",
        f"  that is {plan.participants} participants a group with {plan.trials_each} trials each.",
        f"Simulated power of Welch's t test on the rates of {plan.participants} participants a group: "
        f"{value_text(check.value)} {interval_text(check)} (n {check.n} simulations).",
    ]
    if plan.participants_simulated > plan.participants:
        lines.append(f"By simulation it takes {plan.participants_simulated} participants a group.")
    return "\n".join(lines)


def _section(section: Section) -> str:
    tables = "\n\n".join(table(one.head, one.rows) for one in section.tables)
    return "\n".join(part for part in (section.title, tables, *section.sentences) if part)
