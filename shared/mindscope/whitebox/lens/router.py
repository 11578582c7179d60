"""Which kind of position an activation belongs to: k-means on the leading directions of the unit-length activation.

    router = fit_router(activations, n_experts=8)       # activations [n, d_model] of one block
    router.assign(h)                                    # [..., d_model] -> [...] the expert of each, 0..E-1

With u = h / |h|, y = (u - mean) C where C holds the leading eigenvectors of cov(u); an activation belongs to the
centroid nearest to y. So a positive factor on h changes nothing. A router is used only while a lens is fitted; it
says which Jacobians are averaged together (section A4 of the J++ recipe).
"""

import hashlib
from dataclasses import dataclass

import torch

from mindscope.errors import MindscopeError

MAX_STEPS = 100
TOLERANCE = 1e-6
"""Lloyd's steps stop when no centroid moved farther than this."""


@dataclass(frozen=True)
class Router:
    """The router of one block, fp32: `mean` [d_model], `components` [d_model, D] with orthonormal columns,
    `centroids` [E, D]."""

    mean: torch.Tensor
    components: torch.Tensor
    centroids: torch.Tensor

    @property
    def n_experts(self) -> int:
        return self.centroids.shape[0]

    def project(self, activations: torch.Tensor) -> torch.Tensor:
        """y of each activation, [..., d_model] -> [..., D]; fp32 on the CPU."""
        h = activations.detach().to("cpu", torch.float32)
        return (torch.nn.functional.normalize(h, dim=-1) - self.mean) @ self.components

    def assign(self, activations: torch.Tensor) -> torch.Tensor:
        """Index of the nearest centroid, [..., d_model] -> [...] int64; the first of equally near ones."""
        return _nearest(self.project(activations), self.centroids)

    def sha256(self) -> str:
        """Hash of the three tensors, so that only sums routed alike are ever added."""
        digest = hashlib.sha256()
        for tensor in (self.mean, self.components, self.centroids):
            digest.update(str(list(tensor.shape)).encode() + tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()


def fit_router(activations: torch.Tensor, *, n_experts: int = 8, n_components: int = 64, seed: int = 0) -> Router:
    """A router from `activations` [n, d_model] of one block, pooled over prompts' kept positions.

    k-means++ seeding, then at most 100 of Lloyd's steps; an empty cluster is moved to the point farthest from its
    centroid. The same input and seed give the same router on the same machine.

    Raises MindscopeError when there are fewer activations than experts or than components + 1, or one is not finite.
    """
    n, d_model = activations.shape
    n_components = min(n_components, d_model)
    if n_experts < 1 or n < max(n_experts, n_components + 1):
        raise MindscopeError(
            f"{n} activations cannot make a router of {n_experts} experts on {n_components} components; give at "
            f"least {max(n_experts, n_components + 1)} positions"
        )
    if not torch.isfinite(activations).all():
        raise MindscopeError("an activation is not finite; load the model in a wider dtype, such as float32")
    unit = torch.nn.functional.normalize(activations.detach().to("cpu", torch.float64), dim=-1)
    mean = unit.mean(0)
    _, vectors = torch.linalg.eigh((unit - mean).T @ (unit - mean) / (n - 1))
    components = vectors[:, -n_components:].flip(1)
    centroids = kmeans((unit - mean) @ components, n_experts, seed=seed)
    return Router(mean.float(), components.float().contiguous(), centroids.float())


def kmeans(points: torch.Tensor, k: int, *, seed: int = 0, max_steps: int = MAX_STEPS) -> torch.Tensor:
    """Centroids [k, D] of `points` [n, D]."""
    generator = torch.Generator().manual_seed(seed)
    centroids = _spread_seeds(points, k, generator)
    for _ in range(max_steps):
        assignment = _nearest(points, centroids)
        moved = torch.zeros_like(centroids).index_add_(0, assignment, points)
        counts = assignment.bincount(minlength=k)
        moved = moved / counts.clamp(min=1)[:, None]
        empty = (counts == 0).nonzero().flatten()
        if len(empty):
            distance = (points - centroids[assignment]).square().sum(-1)
            moved[empty] = points[distance.topk(len(empty)).indices]
        shift = (moved - centroids).norm(dim=-1).max()
        centroids = moved
        if shift < TOLERANCE:
            break
    return centroids


def _spread_seeds(points: torch.Tensor, k: int, generator: torch.Generator) -> torch.Tensor:
    """k-means++: each next seed is drawn with probability proportional to its squared distance from the others."""
    chosen = [int(torch.randint(len(points), (1,), generator=generator))]
    distance = (points - points[chosen[0]]).square().sum(-1)
    for _ in range(k - 1):
        weights = distance if distance.sum() > 0 else torch.ones_like(distance)
        chosen.append(int(torch.multinomial(weights, 1, generator=generator)))
        distance = torch.minimum(distance, (points - points[chosen[-1]]).square().sum(-1))
    return points[chosen].clone()


def _nearest(points: torch.Tensor, centroids: torch.Tensor) -> torch.Tensor:
    """argmin over centroids of |p - c|^2, of which |p|^2 is the same for all."""
    return (centroids.square().sum(-1) - 2 * points @ centroids.T).argmin(-1)
