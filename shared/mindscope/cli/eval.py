"""`mindscope eval`: run an environment through the installed verifiers, then say what happened and exit accordingly.

The run itself is verifiers' own: its v1 runner (in 0.3.1 and in 0.4), or with `--api legacy` the one behind 0.3's
`vf-eval`. Added here: one folder a run with a manifest in it, no upload unless `--push`, a resume that refuses to mix
two settings, a table with n and intervals, `report.html`, and an exit code that is 0 only when every rollout was
answered and scored.
"""

import re
import sys
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Annotated, NamedTuple

import typer
from openai import APIConnectionError, OpenAI, OpenAIError

from mindscope import __version__
from mindscope.cli.arguments import environment_name, json_object
from mindscope.cli.runners import Launch, Runner, runner
from mindscope.cli.secrets import Secret
from mindscope.errors import MindscopeError
from mindscope.records import MANIFEST, Manifest, installed_versions, write_whole
from mindscope.report.runs import Run, read_run
from mindscope.report.summary import format_text, summarise
from mindscope.stimuli import data_path, sha256


class Provider(NamedTuple):
    base_url: str
    api_key_var: str


PROVIDERS = {
    "local": Provider("http://127.0.0.1:8000/v1", "VLLM_API_KEY"),
    "openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "prime": Provider("https://api.pinference.ai/api/v1", "PRIME_API_KEY"),
}


def evaluate(
    env: Annotated[str, typer.Argument(help="Environment, as ps_primal or ps-primal; it must be installed.")],
    provider: Annotated[str, typer.Option(help=f"Where the model is served: {', '.join(PROVIDERS)}.")] = "local",
    base_url: Annotated[str | None, typer.Option(help="Another OpenAI-compatible endpoint.")] = None,
    api_key_var: Annotated[str | None, typer.Option(help="Variable that holds the endpoint's key.")] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="Model name at that endpoint.")] = "embedded",
    n: Annotated[int | None, typer.Option("-n", min=1, help="Items to run; all when left out.")] = None,
    rollouts: Annotated[int, typer.Option("-r", "--rollouts", min=1, help="Rollouts an item.")] = 1,
    concurrency: Annotated[int, typer.Option("-c", "--concurrency", min=1, help="Calls in flight.")] = 8,
    env_args: Annotated[str, typer.Option(help="The environment's arguments, as a JSON object.")] = "{}",
    sampling: Annotated[str, typer.Option(help='Sampling, as a JSON object, such as {"temperature": 0}.')] = "{}",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The run's folder.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Run what the folder of -o still lacks.")] = False,
    api: Annotated[str, typer.Option(help="verifiers' runner: v1, or legacy (verifiers 0.3 only).")] = "v1",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be run, and stop.")] = False,
    push: Annotated[bool, typer.Option("--push", help="Upload the finished run to Prime.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
) -> None:
    """Run an environment on a model; print its scores with n and intervals. Exits 1 when a rollout failed."""
    run_with = runner(api)
    endpoint = _endpoint(provider, base_url, api_key_var)
    name = environment_name(env)
    paradigm = _paradigm(name)
    manifest = Manifest(
        environment=name,
        environment_version=_environment_version(name),
        mindscope_version=__version__,
        data_sha256={file: sha256(data_path(file)) for file in getattr(paradigm, "DATA_FILES", ())},
        api=api,
        model=model,
        base_url=endpoint.base_url,
        api_key_var=endpoint.api_key_var,
        sampling=json_object("--sampling", sampling),
        env_args=json_object("--env-args", env_args),
        n=n,
        rollouts=rollouts,
        versions=installed_versions(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    expected = _expected_rollouts(paradigm, manifest)
    if dry_run:
        print(_plan(name, paradigm, manifest, expected))
        return
    folder = _run_folder(output, manifest, resume=resume)
    _check_endpoint(endpoint)
    folder.mkdir(parents=True, exist_ok=True)
    if not resume:
        write_whole(folder / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
    dashboard = sys.stdout.isatty() and not as_json
    results = _run(run_with, manifest, Launch(folder, concurrency, resume, push, dashboard))
    run = read_run(results)
    summary = summarise(run)
    if as_json:
        print(summary.to_json())
    else:
        print(format_text(summary))
        _write_report(run, folder / "report.html")
    failed = sum(rollout.failure is not None for rollout in run.rollouts)
    missing = max(expected - len(run.rollouts), 0)
    if failed or missing:
        print(
            f"mindscope: {failed} rollouts failed and {missing} are missing of {max(expected, len(run.rollouts))}; "
            f"the same command with -o {folder} --resume runs them again",
            file=sys.stderr,
        )
        raise typer.Exit(1)


def _run(run_with: Runner, manifest: Manifest, launch: Launch) -> Path:
    secret = Secret(manifest.api_key_var)
    with secret.kept_out_of(launch.folder):
        try:
            return run_with(manifest, launch)
        except MindscopeError:
            raise
        except Exception as error:
            raise MindscopeError(
                f"verifiers gave the run up: {type(error).__name__}: {secret.removed_from(str(error))}. What was "
                f"gathered is in {launch.folder}; mend the cause and add --resume -o {launch.folder}"
            ) from None


def _endpoint(provider: str, base_url: str | None, api_key_var: str | None) -> Provider:
    if provider not in PROVIDERS:
        raise MindscopeError(f"--provider is {provider!r}; it is one of {', '.join(PROVIDERS)}, or give --base-url")
    known = PROVIDERS[provider]
    return Provider(base_url or known.base_url, api_key_var or known.api_key_var)


def _check_endpoint(endpoint: Provider) -> None:
    """One call before many: an endpoint that refuses connections stops the run before it starts."""
    try:
        OpenAI(base_url=endpoint.base_url, api_key="EMPTY", max_retries=1, timeout=10).models.list()
    except APIConnectionError:
        raise MindscopeError(
            f"nothing answers at {endpoint.base_url}; start one with `mindscope serve`, or give --base-url"
        ) from None
    except OpenAIError:
        return


def _paradigm(name: str) -> ModuleType | None:
    return import_module(f"{name}.paradigm") if find_spec(f"{name}.paradigm") else None


def _environment_version(name: str) -> str:
    try:
        return version(name.replace("_", "-"))
    except PackageNotFoundError:
        return "unknown"


def _expected_rollouts(paradigm: ModuleType | None, manifest: Manifest) -> int:
    """How many rollouts a whole run holds; 0 where the environment is not one of ours and cannot say."""
    if paradigm is None:
        return 0
    items = len(paradigm.trials(paradigm.Settings.parse(manifest.env_args)))
    return min(items, manifest.n or items) * manifest.rollouts


def _plan(name: str, paradigm: ModuleType | None, manifest: Manifest, expected: int) -> str:
    """What a run would do; an environment whose cost is not plain says it in `<name>.cost.describe(settings)`."""
    plan = (
        f"{name} on {manifest.model} at {manifest.base_url}: {expected or 'all'} rollouts, {manifest.rollouts} an item"
    )
    if paradigm is None or find_spec(f"{name}.cost") is None:
        return plan
    settings = paradigm.Settings.parse(manifest.env_args)
    return f"{plan}\n{import_module(f'{name}.cost').describe(settings)}"


def _run_folder(output: Path | None, manifest: Manifest, *, resume: bool) -> Path:
    """The folder of this run, not yet made; refuses one that holds something else."""
    if output is None:
        if resume:
            raise MindscopeError("--resume needs -o, the folder of the run to go on with")
        slug = re.sub(r"[^\w.-]+", "-", f"{manifest.environment}--{manifest.model}--{manifest.started}")
        output = Path("outputs") / slug
    path = output / MANIFEST
    if resume:
        if not path.is_file():
            raise MindscopeError(f"{output} holds no {MANIFEST}, so there is no run of `mindscope eval` to resume")
        saved = Manifest.model_validate_json(path.read_text(encoding="utf-8"))
        if differences := saved.differences(manifest):
            raise MindscopeError(
                f"{output} was run with other settings, and mixing them would spoil it: {'; '.join(differences)}. "
                "Repeat the first command with --resume, or choose another -o"
            )
        return output
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise MindscopeError(f"{output} exists and is not an empty folder; add --resume to go on, or choose another -o")
    return output


def _write_report(run: Run, path: Path) -> None:
    try:
        from mindscope.report.page import write_report

        write_report(run, path)
    except (ImportError, MindscopeError) as error:
        print(f"mindscope: no report was written: {error}", file=sys.stderr)
    else:
        print(f"report: {path}")
