"""Changing what a model holds: edits of the residual stream along lens vectors, at chosen blocks and positions.

    pair = lens_directions(model, lens, 20, [apple, pear])          # the two lens vectors at block 20
    swap = Swap(pair, alpha=2.0, reading="coordinate")
    editor = Editor(model, [[Edit(20, range(31, 44), swap)]])       # a list of edits for each prompt
    logits = edited_logits(model, [prompt], editor)
    editor.records()                                                # what was asked and reached, position by position

The same editor serves `activations.capture` and cached generation (`branches`), where a position is a token's index in
the whole sequence: a token that is generated at an edited position is edited when it is read.

With V the vectors as columns, an edit moves the coordinates c = V^+ h and leaves the complement of V's span alone:

    Swap     reading "coordinate"  h + V(alpha P c - c)      P exchanges the two; alpha = 0 removes both
             reading "delta"       h + alpha V(P c - c)      alpha = 0 does nothing; alpha = 1 is the same in both
    Clamp    h + V(c* - c)         c* fixed beforehand; `clamped` takes it from a clean pass. Over several blocks live
                                   swaps undo each other, clamped ones do not
    Steer    h + strength V 1      Ablate  h - V c
    MatchedControl                 h + |delta| z, with delta that of another change and z orthogonal to its vectors

All of it is computed in fp32 (fp64 in an fp64 model) and written back in the model's dtype.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn

from mindscope.errors import MindscopeError
from mindscope.whitebox.activations import Visit, capture, check_editor, checked_blocks, read, working_dtype
from mindscope.whitebox.architectures import part
from mindscope.whitebox.lens.lens import Lens
from mindscope.whitebox.lens.readout import matrix_at
from mindscope.whitebox.model import LocalModel, Prompt, length_batches

MAX_COSINE = 0.999
"""Two vectors nearer to parallel than this cannot be told apart by their coordinates."""


class Directions:
    """k vectors [k, d_model] at one block, and the coordinates of residuals along them.

    `cosine` is the largest |cos| between two of them, `condition` the condition number of V.
    """

    def __init__(self, vectors: torch.Tensor) -> None:
        """Raises MindscopeError for a zero or non-finite vector, and for two with |cos| above `MAX_COSINE`."""
        self.vectors = vectors.detach().to("cpu", torch.float64)
        lengths = self.vectors.norm(dim=-1)
        if not self.vectors.isfinite().all() or not (lengths > 0).all():
            raise MindscopeError("a direction is zero or not finite; an edit needs vectors with a length")
        unit = self.vectors / lengths[:, None]
        cosines = (unit @ unit.T).fill_diagonal_(0).abs()
        self.cosine = float(cosines.max())
        if self.cosine > MAX_COSINE:
            i, j = divmod(int(cosines.argmax()), len(cosines))
            raise MindscopeError(
                f"directions {i} and {j} have |cos| {self.cosine:.6f}, above {MAX_COSINE}: they are one direction, "
                "in which two coordinates cannot be told apart; choose other tokens or another block"
            )
        self.condition = float(torch.linalg.cond(self.vectors))
        self._dual = torch.linalg.pinv(self.vectors).T
        self._ready: dict[tuple[torch.device, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}

    def __len__(self) -> int:
        return len(self.vectors)

    def coordinates(self, residual: torch.Tensor) -> torch.Tensor:
        """c = V^+ h: [position, d_model] -> [position, k]."""
        return residual @ self._as(residual)[1].T

    def combine(self, coordinates: torch.Tensor) -> torch.Tensor:
        """V c: [position, k] -> [position, d_model]."""
        return coordinates @ self._as(coordinates)[0]

    def _as(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        place = (like.device, like.dtype)
        if place not in self._ready:
            self._ready[place] = (self.vectors.to(*place), self._dual.to(*place))
        return self._ready[place]


def lens_directions(
    model: LocalModel,
    lens: Lens,
    block: int,
    token_ids: Sequence[int],
    *,
    gain: Literal["none", "fold"] = "none",
    norm: Literal["raw", "unit"] = "raw",
) -> Directions:
    """The lens vectors v_t = W_U[t] J_block of `token_ids`; <v_t, h> is t's logit before the final norm.

    `gain="fold"` puts the final norm's gain g in, (g * W_U[t]) J, with which <v_t, h> / rms(J h) is the lens's logit
    (of a LayerNorm, up to its bias). `norm="unit"` gives every vector length 1, which changes what a swap does when the
    lengths differ. Raises MindscopeError for an unknown block, token or option.
    """
    if gain not in ("none", "fold") or norm not in ("raw", "unit"):
        raise MindscopeError(f"gain is {gain!r} and norm is {norm!r}; gain is none or fold, norm is raw or unit")
    lens.check(model)
    if not token_ids or not 0 <= min(token_ids) <= max(token_ids) < model.vocab_size:
        raise MindscopeError(f"token_ids is {list(token_ids)}; give ids from 0 to {model.vocab_size - 1}")
    matrix = matrix_at(model, lens, block)

    def vectors() -> torch.Tensor:
        rows = part(model.hf, model.layout.head).weight[list(token_ids)].detach().to("cpu", torch.float64)
        if gain == "fold":
            rows = _fold_norm(part(model.hf, model.layout.final_norm), rows)
        found = rows @ matrix.double()
        return found / found.norm(dim=-1, keepdim=True) if norm == "unit" else found

    return Directions(model.run(vectors))


class Change(ABC):
    """What an edit does to the residuals at its positions."""

    directions: Directions

    @abstractmethod
    def asked(self, coordinates: torch.Tensor, positions: Sequence[int]) -> torch.Tensor:
        """The coordinates [position, k] that the change is to bring about, from those that are there."""

    def delta(self, residual: torch.Tensor, positions: Sequence[int]) -> torch.Tensor:
        """What is added to `residual` [position, d_model]."""
        there = self.directions.coordinates(residual)
        return self.directions.combine(self.asked(there, positions) - there)


@dataclass(frozen=True)
class Swap(Change):
    """Exchange the coordinates of two directions, from what is there when the edit comes by (live)."""

    directions: Directions
    alpha: float = 1.0
    reading: Literal["coordinate", "delta"] = "coordinate"
    """What `alpha` scales: the exchanged coordinates, or the difference the exchange makes."""

    def __post_init__(self) -> None:
        if len(self.directions) != 2:
            raise MindscopeError(f"a swap takes 2 directions, not {len(self.directions)}")
        if self.reading not in ("coordinate", "delta") or not math.isfinite(self.alpha):
            raise MindscopeError(
                f"reading is {self.reading!r} and alpha is {self.alpha}; reading is coordinate or delta, alpha a number"
            )

    def asked(self, coordinates: torch.Tensor, positions: Sequence[int]) -> torch.Tensor:
        exchanged = self.alpha * coordinates.flip(-1)
        if self.reading == "coordinate":
            return exchanged
        return exchanged + (1 - self.alpha) * coordinates


@dataclass(frozen=True)
class Clamp(Change):
    """Set the coordinates to `targets`: [k] for every position, or one [k] for each position by its number."""

    directions: Directions
    targets: torch.Tensor | Mapping[int, torch.Tensor]

    def asked(self, coordinates: torch.Tensor, positions: Sequence[int]) -> torch.Tensor:
        if isinstance(self.targets, torch.Tensor):
            return self.targets.to(coordinates).expand_as(coordinates)
        return torch.stack([self.targets[at] for at in positions]).to(coordinates)


@dataclass(frozen=True)
class Steer(Change):
    """Add `strength` times each direction."""

    directions: Directions
    strength: float

    def asked(self, coordinates: torch.Tensor, positions: Sequence[int]) -> torch.Tensor:
        return coordinates + self.strength


@dataclass(frozen=True)
class Ablate(Change):
    """Remove what lies in the span of the directions."""

    directions: Directions

    def asked(self, coordinates: torch.Tensor, positions: Sequence[int]) -> torch.Tensor:
        return torch.zeros_like(coordinates)


@dataclass(frozen=True)
class MatchedControl(Change):
    """Add to each position a vector as long as what `like` would add there, along `direction` [d_model], of which the
    part in the span of `like`'s vectors is removed first: their coordinates stay as they are."""

    like: Change
    direction: torch.Tensor
    directions: Directions = field(init=False)

    def __post_init__(self) -> None:
        directions = self.like.directions
        direction = self.direction.to(torch.float64)
        left = direction - directions.combine(directions.coordinates(direction))
        if not left.norm() > 1e-6 * direction.norm():
            raise MindscopeError("the control's direction lies in the span of the vectors it is to leave alone")
        object.__setattr__(self, "direction", left / left.norm())
        object.__setattr__(self, "directions", directions)

    def asked(self, coordinates: torch.Tensor, positions: Sequence[int]) -> torch.Tensor:
        return coordinates

    def delta(self, residual: torch.Tensor, positions: Sequence[int]) -> torch.Tensor:
        length = self.like.delta(residual, positions).norm(dim=-1, keepdim=True)
        return length * self.direction.to(residual)


def matched_control(like: Change, *, seed: int) -> MatchedControl:
    """The control whose direction is drawn from N(0, I); the same seed gives the same direction."""
    generator = torch.Generator().manual_seed(seed)
    width = like.directions.vectors.shape[1]
    return MatchedControl(like, torch.randn(width, generator=generator, dtype=torch.float64))


def decoy_pair(candidates: Sequence[int], avoid: Collection[int], *, seed: int) -> tuple[int, int]:
    """Two different tokens of `candidates` (one category's) that are not in `avoid`, for a swap that should not matter;
    the same seed gives the same two. Raises MindscopeError when there are not two."""
    left = sorted(set(candidates) - set(avoid))
    if len(left) < 2:
        raise MindscopeError(
            f"{len(left)} tokens are left for a decoy; give at least 2 that are not swapped themselves"
        )
    first, second = torch.randperm(len(left), generator=torch.Generator().manual_seed(seed))[:2].tolist()
    return left[first], left[second]


@dataclass(frozen=True)
class Edit:
    """`change` at `block`'s output, at `positions`: indices from 0 into the whole sequence, a range for an open end.

    A position that is never read is never edited, and has no record.
    """

    block: int
    positions: Sequence[int]
    change: Change


@dataclass(frozen=True)
class EditRecord:
    """What one edit did at one position: the coordinates `before` it, those `asked` of it, and those `reached` in what
    was written, after rounding to the model's dtype; `ratio` is |delta| / |h|."""

    row: int
    block: int
    position: int
    before: tuple[float, ...]
    asked: tuple[float, ...]
    reached: tuple[float, ...]
    ratio: float
    cosine: float
    condition: float


class Editor:
    """Makes edits as passes go by, and keeps a log of them. `edits[i]` are those of row i: a prompt, or a question.

    Edits of one row at one block and position follow one another in the order given. The log holds every pass the
    editor was used for.
    """

    def __init__(self, model: LocalModel, edits: Sequence[Sequence[Edit]]) -> None:
        """Raises MindscopeError for a block that does not exist, a position below 1 (the first token is an attention
        sink, on which every later one leans), vectors of another width, and clamps that lack a position."""
        for edit in (edit for row in edits for edit in row):
            checked_blocks(model, [edit.block])
            width = edit.change.directions.vectors.shape[1]
            if width != model.d_model:
                raise MindscopeError(f"an edit's vectors have {width} dimensions, the model's residual {model.d_model}")
            if min(edit.positions, default=1) < 1:
                raise MindscopeError(
                    f"an edit names position {min(edit.positions)}; the first token is never edited, as all later ones "
                    "lean on it, so positions start at 1"
                )
            targets = edit.change.targets if isinstance(edit.change, Clamp) else None
            if isinstance(targets, Mapping) and not set(edit.positions) <= set(targets):
                raise MindscopeError("a clamp has no target for some of its edit's positions; see `clamped`")
        self.blocks = sorted({edit.block for row in edits for edit in row})
        self._edits = [[(edit, _as_set(edit.positions)) for edit in row] for row in edits]
        self._dtype = working_dtype(model)
        self._log: list[tuple[int, Edit, list[int], list[torch.Tensor]]] = []

    def __len__(self) -> int:
        return len(self._edits)

    def visit(self, rows: Sequence[int], positions: Sequence[Sequence[int]]) -> Visit:
        """See `activations.Editing`."""

        def edit_rows(block: int, residual: torch.Tensor) -> torch.Tensor:
            edited = residual.clone()
            for i, (row, at) in enumerate(zip(rows, positions, strict=True)):
                for edit, wanted in self._edits[row]:
                    columns = [column for column, position in enumerate(at) if position in wanted]
                    if edit.block == block and columns:
                        found = [at[column] for column in columns]
                        edited[i, columns] = self._apply(edit, row, found, edited[i, columns])
            return edited

        return edit_rows

    def records(self) -> list[EditRecord]:
        """The log, in the order the edits were made."""
        found = []
        for row, edit, positions, tensors in self._log:
            directions = edit.change.directions
            before, asked, reached, ratio = (tensor.tolist() for tensor in tensors)
            for i, position in enumerate(positions):
                coordinates = (tuple(before[i]), tuple(asked[i]), tuple(reached[i]))
                found.append(
                    EditRecord(
                        row, edit.block, position, *coordinates, ratio[i], directions.cosine, directions.condition
                    )
                )
        return found

    def _apply(self, edit: Edit, row: int, positions: list[int], residual: torch.Tensor) -> torch.Tensor:
        h = residual.to(self._dtype)
        directions = edit.change.directions
        before = directions.coordinates(h)
        delta = edit.change.delta(h, positions)
        written = (h + delta).to(residual.dtype)
        reached = directions.coordinates(written.to(self._dtype))
        ratio = delta.norm(dim=-1) / h.norm(dim=-1)
        self._log.append((row, edit, positions, [before, edit.change.asked(before, positions), reached, ratio]))
        return written


def edited_logits(
    model: LocalModel, prompts: Sequence[Prompt], editor: Editor, *, last: int = 1, batch_size: int = 16
) -> torch.Tensor:
    """Logits at the last `last` positions of each prompt under the editor's edits, [prompt, last, vocabulary], fp32 on
    the CPU; without edits they are `LocalModel.last_logits`.

    A prompt shorter than `last` has no meaning in the positions it lacks. Raises MindscopeError when the editor has not
    one row for each prompt, and for prompts the model cannot read.
    """
    rows = model.rows(prompts)
    check_editor(editor, len(rows))
    out = torch.empty(len(rows), last, model.vocab_size)
    for indices in length_batches([len(row) for row in rows], batch_size):
        logits = read(model, [rows[i] for i in indices], editor=editor, names=indices, logits=last)
        out[indices, -logits.shape[1] :] = logits.float().cpu()
    return out


def clamped(model: LocalModel, prompts: Sequence[Prompt], edits: Sequence[Sequence[Edit]]) -> list[list[Edit]]:
    """`edits` with every change replaced by a clamp to the coordinates that it asks for in a clean pass over its
    prompt, position by position.

    A prompt is all that will be read, such as the prompt and the reply of a clean run. Raises MindscopeError when an
    edit names a position that its prompt does not have.
    """
    rows = model.rows(prompts)
    if len(edits) != len(rows):
        raise MindscopeError(f"there are edits for {len(edits)} prompts, and {len(rows)} prompts")
    blocks = {edit.block for row in edits for edit in row}
    wanted = [sorted({at for edit in row for at in edit.positions}) for row in edits]
    done: list[list[Edit]] = [[] for _ in rows]
    if not blocks:
        return done
    for found in capture(model, rows, sorted(blocks), wanted):
        index = {at: i for i, at in enumerate(found.positions)}
        for edit in edits[found.prompt]:
            positions = list(edit.positions)
            clean = found.values[edit.block][[index[at] for at in positions]].to(working_dtype(model))
            targets = edit.change.asked(edit.change.directions.coordinates(clean), positions)
            clamp = Clamp(edit.change.directions, dict(zip(positions, targets, strict=True)))
            done[found.prompt].append(Edit(edit.block, positions, clamp))
    return done


def _as_set(positions: Sequence[int]) -> Collection[int]:
    return positions if isinstance(positions, range) else frozenset(positions)


def _fold_norm(norm: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Rows of the head [k, d_model] as they act on what enters the final norm, up to its scale.

    The gain is read off the norm's answer to long alternating vectors, since families store it as g or as 1 + g.
    """
    probe = 1e4 * torch.ones(rows.shape[1], dtype=torch.float64)
    probe[1::2] *= -1
    weights = {name: value.detach().to("cpu", torch.float64) for name, value in norm.named_parameters()}
    there, back = (torch.func.functional_call(norm, weights, (x[None],))[0] for x in (probe, -probe))
    folded = rows * (there - back).double() / 2 * probe.sign()
    return folded - folded.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else folded
