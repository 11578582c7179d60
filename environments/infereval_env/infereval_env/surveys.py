"""Analysts' verdicts from a survey: the columns of an export, the answers in a CSV, and the panel they make.

    mapping = read_mapping(Path("survey.qsf.mapping.json"))
    respondents = read_responses(Path("responses.csv"), "qualtrics", benchmark, mapping=mapping)
    benchmark = merge(benchmark, respondents, panel="second")

An answer that was not given is missing (null), not an abstention, and no column is left unread in silence: a
CSV whose columns cannot be matched with the items is an error. `forms` writes the surveys.
"""

import csv
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mindscope.errors import MindscopeError
from mindscope.records import write_whole
from mindscope.stimuli import read_text
from pydantic import TypeAdapter, ValidationError

from infereval_env.bearers import PENDING
from infereval_env.files import check_benchmark, faults_error, read_json, shape_faults
from infereval_env.formats import Analyst, Benchmark, Item, Strict, dump
from infereval_env.verdicts import LABELS, QuestionForm, Verdict

Platform = Literal["qualtrics", "google_forms", "surveymonkey"]
RATIONALE = "_rationale"
_PLAIN_TAG = re.compile(r"[A-Za-z0-9_]{1,80}\Z")
_NUMBERED = re.compile(r"\s*Item\s+(\d+)\b(\s+rationale)?", re.IGNORECASE)
_TAGGED = re.compile(r"\[item:(\w+)\]")


class MappingRow(Strict):
    """Which columns of a survey hold the answers to an item; the n-th row is the n-th item shown."""

    item_id: str
    verdict_data_export_tag: str
    rationale_data_export_tag: str | None = None
    was_hashed: bool
    question_form: QuestionForm | None = None
    frame_id: str | None = None
    header_mode: str | None = None


@dataclass
class Respondent:
    """One person's answers. An item that was not answered is absent from `verdicts`."""

    id: str
    finished: bool
    expertise: str | None
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    rationales: dict[str, str | None] = field(default_factory=dict)


def export_tag(item_id: str) -> tuple[str, bool]:
    """An item's column name, and whether it is a hash because the id cannot be one."""
    if _PLAIN_TAG.match(item_id):
        return item_id, False
    return f"item_{hashlib.sha256(item_id.encode()).hexdigest()[:8]}", True


def make_mapping(
    benchmark: Benchmark, form: QuestionForm, frame_id: str, *, rationales: bool = True
) -> list[MappingRow]:
    """The columns of a survey on all items, in their order. Raises MindscopeError when two items share a
    tag."""
    rows = []
    for item in benchmark.items:
        tag, hashed = export_tag(item.id)
        rows.append(
            MappingRow(
                item_id=item.id,
                verdict_data_export_tag=tag,
                rationale_data_export_tag=tag + RATIONALE if rationales else None,
                was_hashed=hashed,
                question_form=form,
                frame_id=frame_id,
            )
        )
    tags = [tag for row in rows for tag in (row.verdict_data_export_tag, row.rationale_data_export_tag) if tag]
    if repeated := sorted({tag for tag in tags if tags.count(tag) > 1}):
        raise MindscopeError(f"Survey columns {repeated} would belong to two items each; rename those items.")
    return rows


def mapping_path(survey: Path) -> Path:
    """Where the mapping of a survey, or of its responses, lies: beside it, with `.mapping.json` added."""
    return survey.with_name(survey.name + ".mapping.json")


def write_survey(path: Path, text: str, mapping: Sequence[MappingRow]) -> None:
    """Write a survey and its mapping."""
    write_whole(path, text)
    rows = [dump(row) for row in mapping]
    write_whole(mapping_path(path), json.dumps(rows, indent=2, ensure_ascii=False) + "\n")


def read_mapping(path: Path) -> list[MappingRow]:
    """The sidecar file of an export. Raises MindscopeError listing every fault."""
    text, data = read_json(path)
    try:
        return TypeAdapter(list[MappingRow]).validate_json(text)
    except ValidationError as error:
        raise faults_error(str(path), list(shape_faults(error, data))) from error


def check_asked(mapping: Sequence[MappingRow], form: QuestionForm, frame_id: str) -> list[str]:
    """Check that the survey asked the declared question; what it does not record is a warning.

    Raises MindscopeError when the rows of the sidecar disagree with each other or with what is declared.
    """
    warnings = []
    declared_and_recorded: list[tuple[str, str, set[str | None]]] = [
        ("question form", form, {row.question_form for row in mapping}),
        ("coherence frame", frame_id, {row.frame_id for row in mapping}),
    ]
    for what, declared, recorded in declared_and_recorded:
        if recorded == {None}:
            warnings.append(f"the mapping does not record the {what}; {declared!r} is taken on trust")
        elif recorded != {declared}:
            raise MindscopeError(
                f"The survey was asked with the {what} {sorted(map(str, recorded))}, not with {declared!r}. "
                "Answers to one question cannot be imported as answers to another."
            )
    return warnings


def decode(cell: str, form: QuestionForm) -> Verdict:
    """The verdict a choice stands for: its first word, without regard to case. Raises ValueError if it is
    none."""
    word = cell.split()[0].upper() if cell.split() else ""
    if word not in LABELS[form]:
        raise ValueError(f"found {cell!r}; an answer begins with {', '.join(w.title() for w in LABELS[form])}")
    return LABELS[form][word]


def read_responses(
    path: Path,
    platform: Platform,
    benchmark: Benchmark,
    *,
    form: QuestionForm = "support",
    mapping: Sequence[MappingRow] | None = None,
) -> list[Respondent]:
    """The respondents in a CSV export of a platform.

    `mapping` is the sidecar written with the survey. Qualtrics names its columns by tag and can do without
    one; Google Forms and SurveyMonkey number the items and cannot, save for headers of the old form
    `[item:<tag>]`. Raises MindscopeError listing every fault: unmatched columns, cells that are no verdict.
    """
    table = [row for row in csv.reader(io.StringIO(read_text(path))) if any(cell.strip() for cell in row)]
    if not table:
        raise MindscopeError(f"{path} holds no rows; an export has a header and a row for each respondent.")
    header, body = table[0], _body(table, platform)
    rows = list(mapping) if mapping is not None else make_mapping(benchmark, form, "")
    faults = []
    if platform == "qualtrics" and not any("ImportId" in cell for cell in table[min(2, len(table) - 1)]):
        faults.append("the third line should be Qualtrics' row of ImportIds; export the responses as CSV once more")
    columns = list(_columns(header, rows, platform, numbered=mapping is not None))
    verdict_columns = {item_id: position for item_id, kind, position in columns if kind == "verdict"}
    rationale_columns = {item_id: position for item_id, kind, position in columns if kind == "rationale"}
    matched = Counter(column[:2] for column in columns)
    faults += [f"{n} columns hold the {kind} on item {name!r}" for (name, kind), n in matched.items() if n > 1]
    unmatched = [row.item_id for row in rows if row.item_id not in verdict_columns]
    strangers = [row.item_id for row in rows if row.item_id not in {item.id for item in benchmark.items}]
    if unmatched:
        needs = "" if mapping is not None or platform == "qualtrics" else " without the survey's mapping file"
        faults.append(f"no column can be matched with the items {unmatched}{needs}; the columns are {header}")
    if strangers:
        faults.append(f"the mapping's items {strangers} are not in benchmark {benchmark.id!r}")
    respondents = []
    for line, cells in body:
        respondent = _respondent(dict(zip(header, cells, strict=False)), line, header, platform)
        for item_id, column in verdict_columns.items():
            cell = cells[column].strip() if column < len(cells) else ""
            if cell:
                try:
                    respondent.verdicts[item_id] = decode(cell, form)
                except ValueError as error:
                    faults.append(f"line {line}, {header[column]!r}: {error}")
        for item_id, column in rationale_columns.items():
            respondent.rationales[item_id] = (cells[column].strip() if column < len(cells) else "") or None
        respondents.append(respondent)
    if faults:
        raise faults_error(str(path), faults)
    return respondents


def _body(table: list[list[str]], platform: Platform) -> Iterator[tuple[int, list[str]]]:
    """Respondents' rows, numbered as the lines of a file whose cells hold no line breaks."""
    first = 1
    if platform == "qualtrics":
        first = 3
    elif (
        platform == "surveymonkey"
        and len(table) > 1
        and "Response" in (cell.split()[0] for cell in table[1] if cell.split())
    ):
        first = 2
    yield from enumerate(table[first:], start=first + 1)


def _columns(
    header: list[str], rows: Sequence[MappingRow], platform: Platform, *, numbered: bool
) -> Iterator[tuple[str, Literal["verdict", "rationale"], int]]:
    """Item, kind and position of every column that belongs to an item."""
    by_tag = {row.verdict_data_export_tag: row.item_id for row in rows}
    by_rationale = {row.rationale_data_export_tag: row.item_id for row in rows if row.rationale_data_export_tag}
    for position, name in enumerate(header):
        tagged = _TAGGED.search(name)
        tag = name.strip() if platform == "qualtrics" else tagged[1] if tagged else None
        number = _NUMBERED.match(name) if numbered and platform != "qualtrics" and not tagged else None
        if tag in by_tag:
            yield by_tag[tag], "verdict", position
        elif tag in by_rationale:
            yield by_rationale[tag], "rationale", position
        elif number and 1 <= int(number[1]) <= len(rows):
            yield rows[int(number[1]) - 1].item_id, "rationale" if number[2] else "verdict", position


def _respondent(cells: dict[str, str], line: int, header: list[str], platform: Platform) -> Respondent:
    if platform == "qualtrics":
        name = cells.get("ResponseId", "").strip() or f"row{line}"
        finished = cells.get("Finished", "").strip().lower() in ("true", "1")
        return Respondent(name, finished, cells.get("expertise", "").strip() or None)
    name = cells.get("Respondent ID", "").strip() if platform == "surveymonkey" else ""
    expertise = next((cells.get(column, "") for column in header if "expertise" in column.lower()), "")
    return Respondent(name or f"row{line}", True, expertise.strip() or None)


def merge(
    benchmark: Benchmark,
    respondents: Sequence[Respondent],
    *,
    prefix: str = "clinician-",
    panel: str | None = None,
    allow_partial: bool = False,
    compat: bool = False,
) -> Benchmark:
    """`benchmark` with one more analyst a respondent, named `prefix` and the response's id.

    Unfinished and incomplete answers are refused unless `allow_partial`; what is missing is then null, and an
    abstention under `compat`, as in infereval. The stand-in for a panel still to come, who never answered,
    gives way. A benchmark with panels needs the name of the respondents' `panel`. Raises MindscopeError.
    """
    if not respondents:
        raise MindscopeError("There are no respondents to import.")
    faults = [] if allow_partial else list(_incomplete(benchmark, respondents))
    if benchmark.panels() and panel is None:
        faults.append(f"the benchmark has the panels {sorted(benchmark.panels())}; name the respondents' panel")
    if not benchmark.panels() and panel is not None and not _stands_in(benchmark):
        faults.append("the benchmark's analysts have no panels, so the respondents cannot have one")
    if faults:
        raise faults_error("the responses", faults)
    kept = [] if _stands_in(benchmark) and not compat else list(range(len(benchmark.analysts)))
    newcomers = tuple(
        Analyst(id=prefix + respondent.id, expertise_description=respondent.expertise, panel=panel)
        for respondent in respondents
    )
    merged = benchmark.model_copy(
        update={
            "analysts": tuple(benchmark.analysts[position] for position in kept) + newcomers,
            "items": tuple(
                _answered(item, kept, respondents, "abstain" if compat else None) for item in benchmark.items
            ),
        }
    )
    return check_benchmark(merged, f"benchmark {benchmark.id!r} with the respondents")


def _stands_in(benchmark: Benchmark) -> bool:
    """Whether the only analyst is the stand-in of a benchmark that has no panel yet."""
    if [analyst.id for analyst in benchmark.analysts] != [PENDING]:
        return False
    return all(item.analyst_verdicts[0] in ("abstain", None) for item in benchmark.items)


def _incomplete(benchmark: Benchmark, respondents: Sequence[Respondent]) -> Iterator[str]:
    for respondent in respondents:
        if missing := [item.id for item in benchmark.items if item.id not in respondent.verdicts]:
            yield f"{respondent.id!r} gave no verdict on {len(missing)} item(s): {missing}"
        elif not respondent.finished:
            yield f"{respondent.id!r} did not finish"


def _answered(item: Item, kept: Sequence[int], respondents: Sequence[Respondent], unsaid: Verdict | None) -> Item:
    before = item.analyst_rationales or ("",) * len(item.analyst_verdicts)
    return item.model_copy(
        update={
            "analyst_verdicts": tuple(item.analyst_verdicts[position] for position in kept)
            + tuple(respondent.verdicts.get(item.id, unsaid) for respondent in respondents),
            "analyst_rationales": tuple(before[position] for position in kept)
            + tuple(respondent.rationales.get(item.id) or "" for respondent in respondents),
        }
    )
