"""What a pal50 run shows, computed from its item table alone.

    analysis = analyse([Source("my-run", rows)])        # typed results, `analysis.model_dump_json()`
    print(format_text(analysis))
    write_analysis(analysis, Path("analysis.html"))

Each module computes one thing and says how: `accuracy`, `curves`, `intrusions`, `confidence`, `regression`,
`contrasts`, `power`; `resampling` makes the intervals. `sections`, `text`, `figures` and `page` only show.
"""

from pal50.analysis.page import write_analysis
from pal50.analysis.power import Plan, participants_needed
from pal50.analysis.runs import Analysis, RunAnalysis, Source, analyse
from pal50.analysis.text import format_plan, format_text

__all__ = [
    "Analysis",
    "Plan",
    "RunAnalysis",
    "Source",
    "analyse",
    "format_plan",
    "format_text",
    "participants_needed",
    "write_analysis",
]
