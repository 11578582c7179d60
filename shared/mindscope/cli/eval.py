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
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer
from openai import APIConnectionError, NotFoundError, OpenAI, OpenAIError

from mindscope import __version__
from mindscope.cli.arguments import environment_name, json_object
from mindscope.cli.run_folder import check_folder, claimed, gathered
from mindscope.cli.runners import Launch, Runner, runner
from mindscope.cli.secrets import Secret
from mindscope.errors import MindscopeError
from mindscope.records import Manifest, installed_versions
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


_LONGEST_NAME = 120
"""Of a run folder, in characters."""


def evaluate(
    env: Annotated[str, typer.Argument(help="Environment, as ps_primal or ps-primal; it must be installed.")],
    provider: Annotated[str, typer.Option(help=f"Where the model is served: {', '.join(PROVIDERS)}.")] = "local",
    base_url: Annotated[str | None, typer.Option(help="Another OpenAI-compatible endpoint.")] = None,
    api_key_var: Annotated[str | None, typer.Option(help="Variable that holds the endpoint's key.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model name there. [local: embedded]")] = None,
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
    name = environment_name(env)
    paradigm = _paradigm(name)
    endpoint = _endpoint(provider, base_url, api_key_var)
    arguments = json_object("--env-args", env_args)
    manifest = Manifest(
        environment=name,
        environment_version=_environment_version(name),
        mindscope_version=__version__,
        data_sha256=_data_hashes(paradigm, arguments),
        api=api,
        model=_model(model, provider),
        base_url=endpoint.base_url,
        api_key_var=endpoint.api_key_var,
        sampling=json_object("--sampling", sampling),
        env_args=arguments,
        n=n,
        rollouts=rollouts,
        versions=installed_versions(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    expected = _expected_rollouts(paradigm, manifest)
    if dry_run:
        print(_plan(name, paradigm, manifest, expected))
        return
    if resume and output is None:
        raise MindscopeError("--resume needs -o, the folder of the run to go on with")
    folder = output or _default_folder(manifest)
    check_folder(folder, manifest, resume=resume)
    _check_endpoint(endpoint)
    launch = Launch(folder, concurrency, resume, push, dashboard=sys.stdout.isatty() and not as_json)
    with claimed(folder, manifest):
        given_up = _run(run_with, manifest, launch)
    if not gathered(folder):
        raise MindscopeError(f"no rollout was run: {given_up or 'verifiers found none to run'}")
    run = read_run(folder)
    summary = summarise(run)
    if as_json:
        print(summary.to_json())
    else:
        print(format_text(summary))
        _write_report(run, folder / "report.html")
    failed = sum(rollout.failure is not None for rollout in run.rollouts)
    if given_up or failed or (expected and len(run.rollouts) != expected):
        print(
            f"mindscope: {len(run.rollouts)} of {expected or 'all'} rollouts are there, {failed} of them failed; the "
            f"same command with --resume -o {folder} runs what is missing and what failed",
            file=sys.stderr,
        )
        if given_up:
            print(f"mindscope: {given_up}", file=sys.stderr)
        raise typer.Exit(1)


def _run(run_with: Runner, manifest: Manifest, launch: Launch) -> str | None:
    """Run to the end; returns why verifiers gave the run up, if it did."""
    secret = Secret(manifest.api_key_var)
    with secret.kept_out_of(launch.folder):
        try:
            run_with(manifest, launch)
        except MindscopeError:
            raise
        except (Exception, SystemExit) as error:
            return secret.removed_from(f"verifiers gave the run up: {type(error).__name__}: {error}")
    return None


def _endpoint(provider: str, base_url: str | None, api_key_var: str | None) -> Provider:
    if provider not in PROVIDERS:
        raise MindscopeError(f"--provider is {provider!r}; it is one of {', '.join(PROVIDERS)}, or give --base-url")
    known = PROVIDERS[provider]
    if not (api_key_var or known.api_key_var).isidentifier():
        raise MindscopeError("--api-key-var is not the name of a variable; give the name, and keep the key in it")
    if "@" in urlsplit(base_url or "").netloc:
        raise MindscopeError("--base-url holds a user name or password; keep it in the variable of --api-key-var")
    return Provider(base_url or known.base_url, api_key_var or known.api_key_var)


def _model(model: str | None, provider: str) -> str:
    if model is None and provider != "local":
        raise MindscopeError("-m is missing: name the model as the endpoint does")
    return model or "embedded"


def _check_endpoint(endpoint: Provider) -> None:
    """One call before many: an endpoint that is not there stops the run before it starts."""
    try:
        OpenAI(base_url=endpoint.base_url, api_key="EMPTY", max_retries=1, timeout=10).models.list()
    except APIConnectionError:
        raise MindscopeError(
            f"nothing answers at {endpoint.base_url}; start one with `mindscope serve`, or give --base-url"
        ) from None
    except NotFoundError:
        if not endpoint.base_url.rstrip("/").endswith("/v1"):
            raise MindscopeError(
                f"there is no /models below {endpoint.base_url}; give --base-url as the server's manual does, "
                "most often up to and with /v1"
            ) from None
    except (OpenAIError, ValueError):
        return


def _paradigm(name: str) -> ModuleType | None:
    """The environment's own module, where it is one of ours: `Settings`, `trials` and `DATA_FILES`."""
    try:
        found = find_spec(f"{name}.paradigm")
    except ModuleNotFoundError:
        raise MindscopeError(f"{name!r} is a module and no environment") from None
    return import_module(f"{name}.paradigm") if found else None


def _data_hashes(paradigm: ModuleType | None, arguments: dict[str, Any]) -> dict[str, str]:
    """SHA-256 of the stimuli, and of every file that the arguments name."""
    named = {str(value): Path(value) for value in arguments.values() if isinstance(value, str) and value}
    files = {name: data_path(name) for name in getattr(paradigm, "DATA_FILES", ())}
    return {name: sha256(path) for name, path in (files | named).items() if path.is_file()}


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


def _default_folder(manifest: Manifest) -> Path:
    slug = re.sub(r"[^\w.-]+", "-", f"{manifest.environment}--{manifest.model}--{manifest.started}")
    return Path("outputs") / slug[:_LONGEST_NAME]


def _write_report(run: Run, path: Path) -> None:
    try:
        from mindscope.report.page import write_report

        write_report(run, path)
    except (ImportError, MindscopeError) as error:
        print(f"mindscope: no report was written: {error}", file=sys.stderr)
    else:
        print(f"report: {path}")
