"""The README's commands, as written, on both verifiers generations and on prime, against a scripted endpoint."""

import json
from pathlib import Path

import pytest
from support.commands import prime, verifiers_03, verifiers_04
from support.stub_server import StubServer
from support.subjects import recalls_levels

# Half of the levels are recalled, so a reward stuck at 0 or at 1 fails here.
KNOWN = ("L0", "L50")


def rows(folder: Path, name: str) -> list[dict]:
    (file,) = folder.rglob(name)
    return [json.loads(line) for line in file.read_text().splitlines()]


def legacy_rewards(folder: Path) -> dict[str, float]:
    return {row["info"]["trcode"]: row["reward"] for row in rows(folder, "results.jsonl")}


def v1_rewards(folder: Path) -> dict[str, float]:
    traces = [row["traces"][0] for row in rows(folder, "traces.jsonl")]
    return {trace["task"]["data"]["trcode"]: trace["rewards"]["recall_correct"]["score"] for trace in traces}


def check(rewards: dict[str, float], n: int) -> None:
    assert len(rewards) == n
    assert rewards == {code: float(code.split("_")[0] in KNOWN) for code in rewards}
    assert set(rewards.values()) == {0.0, 1.0}


@pytest.mark.parametrize(("spelling", "style"), [("ps_primal", "chat"), ("ps-primal", "completion")])
def test_legacy_vf_eval(tmp_path: Path, spelling: str, style: str) -> None:
    with StubServer(recalls_levels(*KNOWN)) as stub:
        done = verifiers_03().run(
            "vf-eval", spelling, "--provider", "local", "--api-base-url", stub.base_url, "-m", "embedded",
            "-n", "50", "-r", "1", "-s", "-d", "-A", "-o", str(tmp_path), "-a", json.dumps({"style": style}),
            cwd=tmp_path,
        )  # fmt: skip
    assert done.code == 0, done
    check(legacy_rewards(tmp_path), 50)
    route = "/v1/chat/completions" if style == "chat" else "/v1/completions"
    assert {call.path for call in stub.requests if call.path != "/v1/models"} == {route}


@pytest.mark.parametrize(("generation", "style"), [("0.3", "chat"), ("0.3", "completion"), ("0.4", "completion")])
def test_v1_eval(tmp_path: Path, generation: str, style: str) -> None:
    venv, command = (verifiers_03(), "eval") if generation == "0.3" else (verifiers_04(), "vf-eval")
    with StubServer(recalls_levels(*KNOWN)) as stub:
        done = venv.run(
            command, "ps-primal", "-m", "embedded", "-n", "50", "--client.base-url", stub.base_url,
            "--client.api-key-var", "VLLM_API_KEY", "--env.taskset.style", style, "--no-push", "--no-rich",
            "-o", str(tmp_path), cwd=tmp_path,
        )  # fmt: skip
    assert done.code == 0, done
    check(v1_rewards(tmp_path), 50)
    raw = [call.body.get("chat_template_kwargs") for call in stub.requests]
    assert raw == [{"raw": True} if style == "completion" else None] * 50


def test_prime_eval_run(tmp_path: Path) -> None:
    program = prime()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "workspace"\nversion = "0"\n')
    with StubServer(recalls_levels(*KNOWN)) as stub:
        done = program.run(
            "prime", "eval", "run", "ps-primal", "-b", stub.base_url, "-k", "VLLM_API_KEY", "-m", "embedded",
            "-n", "50", "-r", "1", "-s", "-d", "-A", "--skip-upload", cwd=tmp_path,
            PRIME_API_KEY="unused", VIRTUAL_ENV=str(verifiers_03().bin.parent),
            PATH=f"{verifiers_03().bin}:/usr/bin:/bin",
        )  # fmt: skip
    assert done.code == 0, done
    check(legacy_rewards(tmp_path), 50)


@pytest.mark.parametrize("arguments", [["--api", "v1"], ["--api", "legacy"]])
@pytest.mark.parametrize("generation", ["0.3", "0.4"])
def test_mindscope_eval(tmp_path: Path, generation: str, arguments: list[str]) -> None:
    venv = verifiers_03() if generation == "0.3" else verifiers_04()
    with StubServer(recalls_levels(*KNOWN)) as stub:
        done = venv.run(
            "mindscope", "eval", "ps-primal", "--provider", "local", "--base-url", stub.base_url, "-m", "x", *arguments,
            "-o", str(tmp_path / "run"), "--json", cwd=tmp_path,
        )  # fmt: skip
    if (generation, arguments[1]) == ("0.4", "legacy"):
        assert done.code == 2
        assert "--api legacy needs verifiers 0.3" in done.stderr
        return
    assert done.code == 0, done
    assert done.json["reward"]["value"] == pytest.approx(0.4)
    assert done.json["scored"] == 50
    assert (tmp_path / "run" / "mindscope.json").is_file()
