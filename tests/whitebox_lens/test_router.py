"""The k-means router: invariances, and a brute-force nearest centroid."""

from itertools import pairwise

import pytest
import torch
from mindscope.errors import MindscopeError
from mindscope.whitebox.lens.router import Router, fit_router, kmeans


@pytest.fixture(scope="module")
def activations() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(4, 20, generator=generator) * 3
    kinds = torch.randint(4, (300,), generator=generator)
    noise = torch.randn(300, 20, generator=generator)
    return (directions[kinds] + noise) * torch.rand(300, 1, generator=generator).add(0.1) * 9


@pytest.fixture(scope="module")
def router(activations: torch.Tensor) -> Router:
    return fit_router(activations, n_experts=4, n_components=6)


def test_length_of_an_activation_does_not_matter(router: Router, activations: torch.Tensor) -> None:
    assert torch.equal(router.assign(activations), router.assign(37 * activations))


def test_components_are_the_leading_orthonormal_directions(router: Router, activations: torch.Tensor) -> None:
    assert torch.allclose(router.components.T @ router.components, torch.eye(6), atol=1e-6)
    unit = activations / activations.norm(dim=1, keepdim=True)
    variances = torch.linalg.svdvals(unit - unit.mean(0)).square() / 299
    assert torch.allclose(router.project(activations).var(0), variances[:6], rtol=1e-3)


def test_assignment_is_the_nearest_centroid(router: Router, activations: torch.Tensor) -> None:
    y = router.project(activations)
    nearest = [min(range(4), key=lambda e: float((one - router.centroids[e]).norm())) for one in y]
    assert router.assign(activations).tolist() == nearest
    assert router.assign(activations.reshape(30, 10, 20)).shape == (30, 10)


def test_centroids_are_the_means_of_their_own(router: Router, activations: torch.Tensor) -> None:
    y, assigned = router.project(activations), router.assign(activations)
    means = torch.stack([y[assigned == e].mean(0) for e in range(4)])
    assert torch.allclose(means, router.centroids, atol=1e-4)


def test_more_steps_never_raise_the_inertia() -> None:
    points = torch.randn(200, 5, generator=torch.Generator().manual_seed(2))

    def inertia(steps: int) -> float:
        return torch.cdist(points, kmeans(points, 6, max_steps=steps)).min(1).values.square().sum().item()

    values = [inertia(steps) for steps in range(8)]
    assert all(later <= earlier + 1e-4 for earlier, later in pairwise(values))
    assert values[-1] < values[0]


def test_an_empty_cluster_is_moved_to_the_farthest_point() -> None:
    points = torch.tensor([[0.0], [0.0], [0.0], [10.0]])
    assert sorted(kmeans(points, 3).flatten().tolist())[-1] == 10.0
    assert sorted(kmeans(torch.zeros(5, 1), 2).flatten().tolist()) == [0.0, 0.0]


def test_same_seed_same_router_other_seed_other_hash(activations: torch.Tensor) -> None:
    one, again = (fit_router(activations, n_experts=7, n_components=6) for _ in range(2))
    assert one.sha256() == again.sha256()
    assert one.sha256() != fit_router(activations, n_experts=7, n_components=6, seed=1).sha256()


def test_too_few_or_broken_activations_are_refused(activations: torch.Tensor) -> None:
    with pytest.raises(MindscopeError, match="at least 21"):
        fit_router(activations[:10], n_experts=8, n_components=64)
    with pytest.raises(MindscopeError, match="not finite"):
        fit_router(activations.clone().index_fill_(0, torch.tensor([3]), float("nan")), n_experts=2)
