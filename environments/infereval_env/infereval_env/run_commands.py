"""`mindscope infereval evaluate` and `report`: a model asked about every item, and a run on one page."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from mindscope.errors import MindscopeError
from mindscope.report.html import write_page
from openai import AsyncOpenAI

from infereval_env.checklist import review
from infereval_env.claims import read_claims
from infereval_env.elicit import COMPLETION_TOKENS, Plan, Tally, Verdicts, WhiteboxAsker, elicit, make_asker
from infereval_env.elicitation import (
    Frame,
    Style,
    Template,
    Wording,
    askable,
    check_askable,
    choose_frame,
    choose_template,
    compose,
)
from infereval_env.files import read_benchmark, read_evaluation, write_evaluation
from infereval_env.formats import Benchmark, Item, Model, Params
from infereval_env.output import (
    Again,
    BenchmarkPath,
    ClaimsPath,
    Compat,
    Json,
    Other,
    Setup,
    SomeBenchmark,
    joined,
    show,
    warn,
)
from infereval_env.page import render
from infereval_env.readings import refuse_trained
from infereval_env.runlog import rebuild
from infereval_env.splits import Split, items_of
from infereval_env.verdicts import QuestionForm, TieBreak

_CHAT_TOKENS = 1024


def evaluate(
    benchmark_path: BenchmarkPath,
    model: Annotated[str, typer.Option("--model", "-m", help="Model name at the endpoint, or what --whitebox loads.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The evaluation to write.")],
    provider: Annotated[str, typer.Option(help="local, openai, openrouter or prime.")] = "local",
    base_url: Annotated[str | None, typer.Option(help="Another OpenAI-compatible endpoint.")] = None,
    api_key_var: Annotated[str | None, typer.Option(help="Variable that holds the endpoint's key.")] = None,
    whitebox: Annotated[bool, typer.Option("--whitebox", help="Read a local model's weights, no endpoint.")] = False,
    question_form: Annotated[
        QuestionForm, typer.Option(help="What is asked; support needs one conclusion.")
    ] = "support",
    template: Annotated[Template | None, typer.Option(help="How a position is laid out.")] = None,
    frame: Annotated[Frame | None, typer.Option(help="The norm that coherence is judged by.")] = None,
    variant: Annotated[int, typer.Option("--paraphrase-variant", min=0, help="k: each bearer's k-th paraphrase.")] = 0,
    style: Annotated[Style, typer.Option(help="completion: for base models, with worked examples.")] = "chat",
    verdicts: Annotated[
        Verdicts, typer.Option(help="vote: sampled replies; logprob: the labels' probabilities.")
    ] = "vote",
    n_samples: Annotated[int | None, typer.Option(min=1, help="Calls an item [5; 1 with logprob].")] = None,
    temperature: Annotated[float, typer.Option(min=0)] = 1.0,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help=f"[{_CHAT_TOKENS}; {COMPLETION_TOKENS} in completion style]")
    ] = None,
    top_p: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    seed: Annotated[int | None, typer.Option(help="Of the first sample; the next has the next seed.")] = None,
    tie_break: Annotated[TieBreak, typer.Option(help="For a tie of good and bad.")] = "abstain",
    strip_tex: Annotated[bool, typer.Option(help="Take the dollar signs around TeX away.")] = True,
    skip_unaskable: Annotated[
        bool, typer.Option("--skip-unaskable", help="Leave out items the form cannot ask.")
    ] = False,
    split: Annotated[Split, typer.Option(help="Only the items of one side, whole ladders together.")] = "all",
    train_share: Annotated[float, typer.Option(min=0, max=1)] = 0.5,
    split_seed: Annotated[int, typer.Option()] = 0,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Calls in flight.")] = 32,
    max_retries: Annotated[int, typer.Option(min=0, help="Times a failed call is sent again.")] = 5,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds a call may take.")] = 600.0,
    log: Annotated[Path | None, typer.Option(help="The run's log [the output's name, with .run.jsonl].")] = None,
    run_id: Annotated[str | None, typer.Option()] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Make the calls that the log lacks.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the prompts; call nothing.")] = False,
    compat: Compat = False,
    as_json: Json = False,
) -> None:
    """Ask a model about every item. Exits 1 when calls failed; the same command with --resume makes those again.

    `--compat` reads replies by infereval's rule, the first label anywhere, and writes what infereval can read.
    """
    benchmark = read_benchmark(benchmark_path)
    wording = Wording(
        form=question_form,
        template=choose_template(benchmark, question_form, style, template),
        frame=choose_frame(benchmark, frame) if question_form == "coherence" else "glosses-1",
        variant=variant,
        style=style,
        keep_tex=not strip_tex,
    )
    params = Params(
        temperature=temperature if verdicts == "vote" else 0.0,
        max_tokens=1
        if verdicts == "logprob"
        else max_tokens or (COMPLETION_TOKENS if style == "completion" else _CHAT_TOKENS),
        top_p=top_p,
        seed=seed,
    )
    if whitebox and (verdicts, style) != ("logprob", "completion"):
        raise MindscopeError(
            "--whitebox reads label probabilities after a raw prompt: add --verdicts logprob --style completion."
        )
    plan = Plan(
        wording=wording,
        model=Model(provider="whitebox" if whitebox else provider, model_id=model, params=params),
        verdicts=verdicts,
        n_samples=n_samples or (5 if verdicts == "vote" else 1),
        tie_break=tie_break,
        parser="first_label" if compat else "strict",
        split=split,
    )
    items = items_of(benchmark, split, seed=split_seed, train_share=train_share)
    if skip_unaskable:
        items = [item for item in items if askable(question_form, item)]
    if dry_run:
        _show_prompts(wording, benchmark, items, as_json)
        return
    log = log or output.with_suffix(".run.jsonl")
    if log.exists() and log.stat().st_size and not resume:
        raise MindscopeError(f"{log} holds a run already: go on with it by --resume, or name another file with --log.")
    endpoint = None if whitebox else _endpoint(provider, base_url, api_key_var)
    work = _elicit(plan, benchmark, items, log, endpoint, concurrency, max_retries, timeout, run_id)
    try:
        tally = asyncio.run(work)
    except KeyboardInterrupt:
        raise MindscopeError(f"Stopped; {log} holds what was answered, and --resume goes on from there.") from None
    eta, warnings = rebuild(log, benchmark, run_id=run_id)
    warnings += write_evaluation(eta, output, compat=compat)
    no_data = sum(item.model_verdict == "no_data" for item in eta.items)
    document = {
        "path": str(output), "log": str(log), "id": eta.id, "n_items": len(eta.items), "n_no_data": no_data,
        "calls_answered": tally.answered, "calls_failed": tally.failed, "calls_kept": tally.kept,
        "seconds": round(tally.seconds, 3), "warnings": warnings,
    }  # fmt: skip
    warn(warnings)
    lines = [
        f"{output}: {len(eta.items)} items, {no_data} without data; {tally.answered} calls answered and "
        f"{tally.failed} failed in {tally.seconds:.2f} s, {tally.kept} kept from before"
    ]
    show(document, as_json, lines)
    raise typer.Exit(1 if tally.failed or no_data else 0)


def report(
    eta_path: Annotated[Path, typer.Argument(help="An evaluation (JSON), or a verifiers run of infereval_env.")],
    benchmark_path: SomeBenchmark = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    again: Again = None,
    other: Other = None,
    claims_path: ClaimsPath = None,
    setup: Setup = None,
    as_json: Json = False,
) -> None:
    """A run on one page: kappa against its ceiling, the ladders, the reviewer's checklist, every item."""
    eta, benchmark, warnings = joined(eta_path, benchmark_path, setup=setup)
    if benchmark is None:
        raise MindscopeError("A report needs the benchmark, for its ladders and panel: give --benchmark.")
    refuse_trained(eta)
    lines, verdict = review(
        eta,
        benchmark,
        again=read_evaluation(again) if again else None,
        other=read_evaluation(other) if other else None,
        claims=read_claims(claims_path) if claims_path else None,
    )
    write_page(render(eta, benchmark, lines, verdict, warnings), output)
    document = {
        "path": str(output),
        "checklist": [line.model_dump() for line in lines],
        "verdict": verdict.model_dump() if verdict else None,
        "warnings": warnings,
    }
    show(document, as_json, [f"{output}: {len(eta.items)} items"])


async def _elicit(
    plan: Plan,
    benchmark: Benchmark,
    items: list[Item],
    log: Path,
    endpoint: tuple[str, str] | None,
    concurrency: int,
    max_retries: int,
    timeout: float,
    run_id: str | None,
) -> Tally:
    from mindscope.cli.score import progress_line

    progress = progress_line("asked") if sys.stderr.isatty() else None
    if endpoint is None:
        asker = WhiteboxAsker(plan.model.model_id, plan)
        return await elicit(plan, benchmark, asker, log, items=items, concurrency=1, run_id=run_id, progress=progress)
    url, key = endpoint
    async with AsyncOpenAI(base_url=url, api_key=key or "EMPTY", max_retries=max_retries, timeout=timeout) as client:
        return await elicit(
            plan,
            benchmark,
            await make_asker(client, plan),
            log,
            items=items,
            concurrency=concurrency,
            run_id=run_id,
            secret=key,
            progress=progress,
        )


def _endpoint(provider: str, base_url: str | None, api_key_var: str | None) -> tuple[str, str]:
    """URL and key; the key's variable may be unset for a server that asks for none."""
    from mindscope.cli.eval import PROVIDERS

    if provider not in PROVIDERS:
        raise MindscopeError(f"--provider is {provider!r}; it is one of {', '.join(PROVIDERS)}, or give --base-url.")
    known = PROVIDERS[provider]
    return base_url or known.base_url, os.environ.get(api_key_var or known.api_key_var, "")


def _show_prompts(wording: Wording, benchmark: Benchmark, items: list[Item], as_json: bool) -> None:
    check_askable(wording, benchmark, items)
    prompts = {item.id: compose(wording, benchmark, item) for item in items}
    chat = wording.style == "chat"
    document = {
        "template_id": wording.template_id,
        "frame_id": wording.frame_id,
        "prompts": {name: prompt.messages if chat else prompt.text for name, prompt in prompts.items()},
    }
    texts = {name: f"{p.system}\n\n{p.user}" if chat else p.text for name, p in prompts.items()}
    lines = [f"--- {name}\n{text}" for name, text in texts.items()]
    show(document, as_json, lines)
