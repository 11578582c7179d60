"""Outputs of peer tools on public inputs, to test against. They lie beside the checkout where they are to be had."""

import os
from pathlib import Path

import pytest

from support.commands import ROOT

ORACLE = Path(os.environ.get("MINDSCOPE_ORACLE", ROOT.parent / "shared" / "oracle"))


def oracle(name: str) -> Path:
    """The file or folder `name`; skips the test that asks where there is none."""
    path = ORACLE / name
    if not path.exists():
        pytest.skip(f"there is no {path}; MINDSCOPE_ORACLE names the folder of peer outputs")
    return path
