"""`make demo`: a real model on two cores, from nothing to a report.

Starts the embedded base model behind an OpenAI-compatible endpoint, runs `ps_primal` on it with the pair studied and
with nothing studied, writes `report.html`, and reads the same prompts out of the weights. Stops what it started.
"""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

OUTPUTS = Path("outputs/demo")
MINDSCOPE = str(Path(sys.executable).with_name("mindscope"))
GREEDY = '{"temperature": 0}'


def main() -> int:
    shutil.rmtree(OUTPUTS, ignore_errors=True)
    say("1/4  starting the embedded model behind an OpenAI-compatible endpoint")
    server = subprocess.Popen([MINDSCOPE, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        base_url = wait_for_url(server)
        say(f"2/4  ps_primal in completion style: 50 pairs, each studied and then tested, at {base_url}")
        run("eval", "ps_primal", "--base-url", base_url, "--sampling", GREEDY, "-o", str(OUTPUTS / "studied"),
            "--env-args", '{"style": "completion"}')  # fmt: skip
        say("3/4  the control: the same 50 cues with nothing studied")
        run("eval", "ps_primal", "--base-url", base_url, "--sampling", GREEDY, "-o", str(OUTPUTS / "control"),
            "--env-args", '{"style": "completion", "study": "none"}')  # fmt: skip
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=30)
    say("4/4  the same prompts read out of the weights: log-probability of each target (first time: a conversion)")
    run("score", "ps_primal", "--model", "embedded")
    shutil.copyfile(OUTPUTS / "studied" / "report.html", "report.html")
    say("done: open report.html; the two runs are in outputs/demo")
    return 0


def wait_for_url(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    for line in server.stdout:
        print(line, end="", flush=True)
        if found := re.search(r"http://\S+/v1", line):
            return found.group()
    raise SystemExit(f"the endpoint stopped with exit code {server.wait()} before it was ready")


def run(*arguments: str) -> None:
    subprocess.run([MINDSCOPE, *arguments], check=True)


def say(text: str) -> None:
    print(f"\n=== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
