"""The folder of one run: whose settings it holds, whether anything was gathered yet, and that one process writes it."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from mindscope.errors import MindscopeError
from mindscope.records import MANIFEST, Manifest, write_whole
from mindscope.stimuli import loads, read_text
from mindscope.validation import check, listing

_RESULTS = ("traces.jsonl", "evals/*/*/results.jsonl")
_LOCK = ".lock"


def gathered(folder: Path) -> bool:
    """Whether a run left any row in `folder`."""
    return any(path.stat().st_size for pattern in _RESULTS for path in folder.glob(pattern))


def check_folder(folder: Path, manifest: Manifest, *, resume: bool) -> None:
    """Raise MindscopeError unless a run with `manifest` may go into `folder`; nothing is written.

    A new run needs a folder that is absent, empty, or left by a run that gathered nothing; a resumed one needs the
    same settings.
    """
    path = folder / MANIFEST
    if resume:
        if not path.is_file():
            raise MindscopeError(f"{folder} holds no {MANIFEST}, so there is no run of `mindscope eval` to resume")
        if differences := _saved(path).differences(manifest):
            raise MindscopeError(
                f"{folder} was run with other settings, and mixing them would spoil it: {'; '.join(differences)}. "
                "Repeat the first command with --resume, or choose another -o"
            )
        return
    if folder.exists() and not folder.is_dir():
        raise MindscopeError(f"{folder} is a file; -o names the run's folder")
    others = folder.is_dir() and any(folder.iterdir())
    if others and (gathered(folder) or not path.is_file()):
        raise MindscopeError(f"{folder} is not empty; add --resume to go on with its run, or choose another -o")


@contextlib.contextmanager
def claimed(folder: Path, manifest: Manifest) -> Iterator[None]:
    """Hold `folder` for this process, with `manifest` in it; raises MindscopeError where it cannot be had."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("w")
    except OSError as error:
        raise MindscopeError(f"cannot write to {folder}: {error.strerror}; choose another -o") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MindscopeError(f"another process is running in {folder}; wait for it, or choose another -o") from None
        write_whole(folder / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
        yield


def _saved(path: Path) -> Manifest:
    try:
        data = loads(read_text(path))
    except ValueError as error:
        raise MindscopeError(f"{path} is not whole ({error}); choose another -o") from None
    saved, faults = check(Manifest, data)
    if saved is None:
        raise MindscopeError(listing(str(path), faults))
    return saved
