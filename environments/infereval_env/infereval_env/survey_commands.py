"""`mindscope infereval survey …`: write a survey, read its answers in, renew the panel of an evaluation."""

from pathlib import Path
from typing import Annotated

import typer
from mindscope.errors import MindscopeError

from infereval_env import forms, surveys
from infereval_env.files import read_benchmark, read_evaluation, write_evaluation, write_model
from infereval_env.output import BenchmarkPath, Compat, EtaPath, Json, show, warn
from infereval_env.readings import rejoin
from infereval_env.surveys import Platform
from infereval_env.verdicts import QuestionForm

app = typer.Typer(help="Verdicts from analysts by survey.", no_args_is_help=True)


@app.command("export")
def survey_export(
    benchmark_path: BenchmarkPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="The survey to write; its mapping goes beside it.")],
    platform: Annotated[Platform, typer.Option(help="Where the survey will run.")] = "qualtrics",
    title: Annotated[str | None, typer.Option(help="The survey's title.")] = None,
    question_form: Annotated[QuestionForm, typer.Option(help="The question to ask.")] = "support",
    coherence_frame: Annotated[str, typer.Option(help="The frame that the model will be asked under.")] = "thin-v1",
    rationales: Annotated[bool, typer.Option(help="Leave room for a rationale.")] = True,
    randomise: Annotated[bool, typer.Option(help="Shuffle the items (Qualtrics).")] = True,
    as_json: Json = False,
) -> None:
    """Write a survey for analysts, and the mapping that reads its answers back."""
    benchmark = read_benchmark(benchmark_path)
    mapping = surveys.make_mapping(benchmark, question_form, coherence_frame, rationales=rationales)
    heading = title or f"Inferences: {benchmark.title or benchmark.id}"
    if platform == "qualtrics":
        text = forms.qualtrics_form(benchmark, mapping, question_form, title=heading, randomise=randomise)
    elif platform == "google_forms":
        text = forms.google_form(benchmark, mapping, question_form, title=heading)
    else:
        raise MindscopeError("Surveys are written for qualtrics and google_forms; SurveyMonkey answers are read only.")
    sidecar = surveys.mapping_path(output)
    surveys.write_survey(output, text, mapping)
    show(
        {"path": str(output), "mapping": str(sidecar), "n_items": len(mapping)},
        as_json,
        [f"{output} and {sidecar}: {len(mapping)} items"],
    )


@app.command("import")
def survey_import(
    benchmark_path: BenchmarkPath,
    responses: Annotated[Path, typer.Option("--responses", "-r", help="The platform's CSV export.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The benchmark to write.")],
    platform: Annotated[Platform, typer.Option(help="Where the survey ran.")] = "qualtrics",
    mapping_path: Annotated[
        Path | None,
        typer.Option("--mapping", help="The survey's mapping; by default <responses>.mapping.json."),
    ] = None,
    prefix: Annotated[str, typer.Option("--analyst-id-prefix", help="Put before each response's id.")] = "clinician-",
    panel: Annotated[str | None, typer.Option(help="The respondents' panel, where the benchmark has panels.")] = None,
    respondent: Annotated[list[str] | None, typer.Option(help="Import these response ids only.")] = None,
    allow_partial: Annotated[
        bool, typer.Option(help="Take incomplete answers; what is missing stays missing.")
    ] = False,
    question_form: Annotated[QuestionForm, typer.Option(help="The question that was asked.")] = "support",
    coherence_frame: Annotated[str, typer.Option(help="The frame it was asked under.")] = "thin-v1",
    compat: Compat = False,
    as_json: Json = False,
) -> None:
    """Add a survey's respondents to a benchmark as analysts."""
    benchmark = read_benchmark(benchmark_path)
    beside = surveys.mapping_path(responses)
    sidecar = mapping_path or (beside if beside.exists() else None)
    mapping = surveys.read_mapping(sidecar) if sidecar else None
    warnings = surveys.check_asked(mapping, question_form, coherence_frame) if mapping else []
    people = surveys.read_responses(responses, platform, benchmark, form=question_form, mapping=mapping)
    if respondent:
        if unknown := sorted(set(respondent) - {person.id for person in people}):
            raise MindscopeError(f"There is no response {unknown}; the ids are {[person.id for person in people]}.")
        people = [person for person in people if person.id in respondent]
    merged = surveys.merge(benchmark, people, prefix=prefix, panel=panel, allow_partial=allow_partial, compat=compat)
    write_model(merged, output)
    warn(warnings)
    document = {
        "path": str(output),
        "n_respondents": len(people),
        "n_analysts": len(merged.analysts),
        "warnings": warnings,
    }
    show(document, as_json, [f"{output}: {len(people)} respondents added, {len(merged.analysts)} analysts"])


@app.command("rejoin")
def survey_rejoin(
    eta_path: EtaPath,
    benchmark_path: BenchmarkPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="The evaluation to write.")],
    compat: Compat = False,
    as_json: Json = False,
) -> None:
    """Put a benchmark's present panel into an evaluation made before it: no model call is needed."""
    eta = rejoin(read_evaluation(eta_path), read_benchmark(benchmark_path))
    lost = write_evaluation(eta, output, compat=compat)
    warn(lost)
    show(
        {"path": str(output), "n_items": len(eta.items), "warnings": lost},
        as_json,
        [f"{output}: {len(eta.items)} items"],
    )
