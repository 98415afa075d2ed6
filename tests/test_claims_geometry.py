"""Geometry of embeddings and keys: closed forms, plain loops, and a survey made by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from experiments.claims.classes import classes_of
from experiments.claims.geometry import (
    effective_dimension,
    hubness,
    isotropy,
    mean_cosine,
    measure,
    neighbours,
    overlap,
    overlaps,
    separation,
)

RNG = np.random.default_rng(3)
CLOUD = RNG.normal(size=(60, 7)) * np.arange(1, 8) + 0.5  # with no two eigenvalues alike
GROUPS = RNG.integers(-1, 4, size=60)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def on_circle(*degrees: float) -> np.ndarray:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def nearest(x: np.ndarray, k: int) -> list[list[int]]:
    """By sorting all the others."""
    n = len(x)
    return [
        sorted((j for j in range(n) if j != i), key=lambda j: -cosine(x[i], x[j]))[:k]
        for i in range(n)
    ]


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (3 * np.eye(5), 0.0),
        (np.tile([1.0, 2.0, 3.0], (4, 1)), 1.0),
        (np.array([[1.0, 2.0], [-3.0, -6.0]]), -1.0),
        (np.eye(6) - 1 / 6, -1 / 5),  # a regular simplex
        (np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]), 0.5**0.5),  # zeros have no direction
    ],
)
def test_mean_cosine_of_figures_one_can_see(x: np.ndarray, expected: float) -> None:
    assert mean_cosine(x) == pytest.approx(expected)


def test_mean_cosine_is_that_of_all_pairs() -> None:
    pairs = [cosine(a, b) for i, a in enumerate(CLOUD) for j, b in enumerate(CLOUD) if i != j]
    assert mean_cosine(CLOUD) == pytest.approx(np.mean(pairs))
    assert mean_cosine(CLOUD.astype(np.float32)) == pytest.approx(np.mean(pairs), abs=1e-6)


@pytest.mark.parametrize("measured", [mean_cosine, isotropy])
def test_one_direction_is_too_few(measured: Callable[[np.ndarray], float]) -> None:
    with pytest.raises(ValueError, match="1 rows of 3"):
        measured(np.array([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]]))


def test_isotropy_of_figures_one_can_see() -> None:
    assert isotropy(np.concatenate([np.eye(4), -np.eye(4)]) * 9) == pytest.approx(1)
    # All rows point one way: e to each along it, 1/e to each against it.
    assert isotropy(np.outer([1.0, 2.0, 5.0], [0.0, 0.6, 0.8])) == pytest.approx(np.exp(-2))


def test_isotropy_looks_along_eigenvectors() -> None:
    # Two rows 60 degrees apart: the eigenvectors are their bisector and what is normal to it.
    along, across = np.cos(np.radians(30)), np.sin(np.radians(30))
    z = [2 * np.exp(along), 2 * np.exp(-along), np.exp(across) + np.exp(-across)]
    assert isotropy(on_circle(80, 140)) == pytest.approx(min(z) / max(z))


def test_effective_dimension() -> None:
    even = RNG.normal(size=(20_000, 5)) + 7
    assert effective_dimension(even) == pytest.approx(1, abs=0.01)
    assert effective_dimension(np.eye(4) + 2) == pytest.approx(3 / 4)  # a simplex, of 3 dimensions
    assert effective_dimension(np.outer(np.arange(6), np.ones(8)) + 1) == pytest.approx(1 / 8)
    assert effective_dimension(np.full((3, 4), 0.1)) == 0
    values = np.linalg.eigvalsh(np.cov(CLOUD.T))
    expected = values.sum() ** 2 / (values**2).sum() / 7
    assert effective_dimension(CLOUD) == pytest.approx(expected)
    assert effective_dimension(CLOUD * 0.01) == pytest.approx(expected)


def test_neighbours_are_the_nearest_others() -> None:
    assert neighbours(CLOUD, 5).tolist() == nearest(CLOUD, 5)
    assert neighbours(CLOUD).shape == (60, 10)
    assert neighbours(CLOUD[:4]).shape == (4, 3)  # no more than there are


def test_nobody_is_their_own_neighbour() -> None:
    for x in (np.ones((12, 3)), np.repeat(CLOUD[:5], 4, axis=0)):
        found = neighbours(x, 3)
        assert (found != np.arange(len(x))[:, None]).all()
        assert all(len(set(row)) == 3 for row in found.tolist())


def test_overlap() -> None:
    assert overlap(np.array([[1, 2], [0, 2], [0, 1]]), np.array([[2, 1], [3, 2], [4, 5]])) == 0.5
    near = neighbours(CLOUD)
    assert overlap(near, near) == 1
    first, second = (neighbours(RNG.normal(size=(500, 20))) for _ in range(2))
    assert overlap(first, second) == pytest.approx(10 / 499, abs=0.01)
    with pytest.raises(ValueError, match=r"\(60, 10\) and \(60, 9\)"):
        overlap(near, near[:, :9])


def test_hubness() -> None:
    assert hubness(neighbours(on_circle(*range(0, 360, 10)), 2), 36) == 0
    star = np.eye(9)
    star[:, 0] = 0.5
    star[0, 0] = 1.0
    times = np.array([8.0, 1.0, *[0.0] * 7])  # the centre is nearest to all, one leaf to it
    third, second = (((times - times.mean()) ** power).mean() for power in (3, 2))
    assert hubness(neighbours(star, 1), 9) == pytest.approx(third / second**1.5)
    assert hubness(np.array([[1], [0]]), 9) > 0  # those that are nobody's count


def test_separation_of_four_points() -> None:
    points = on_circle(0, 30, 90, 120) * [[1], [2], [3], [4]]
    within = 1 - np.cos(np.radians(30))
    # To the other class 1 - cos of (90, 120) from the outer points, of (60, 90) from the inner.
    expected = ((1.25 - within) / 1.25 + (0.75 - within) / 0.75) / 2
    classes = np.array([5, 5, 2, 2])
    assert separation(points, classes) == pytest.approx(expected)
    more = np.concatenate([points, on_circle(10, 100, 101)])  # alone, and two of no class
    assert separation(more, np.array([*classes, 0, -1, -1])) == pytest.approx(expected)


@pytest.mark.parametrize("classes", [[0, 0, 0, 0], [0, 0, 1, 2], [0, 0, -1, -1], [-1] * 4])
def test_no_separation_of_one_class(classes: list[int]) -> None:
    assert separation(on_circle(0, 30, 90, 120), np.array(classes)) is None


@pytest.mark.parametrize(
    "measured",
    [mean_cosine, isotropy, neighbours, lambda x: separation(x, GROUPS)],
    ids=["mean_cosine", "isotropy", "neighbours", "separation"],
)
def test_lengths_and_axes_do_not_count(measured: Callable[[np.ndarray], float]) -> None:
    expected = measured(CLOUD)
    assert measured(CLOUD * RNG.uniform(0.1, 9, size=(60, 1))) == pytest.approx(expected)
    assert measured(CLOUD @ turn()) == pytest.approx(expected)


def turn() -> np.ndarray:
    return np.linalg.qr(RNG.normal(size=(7, 7)))[0]


def test_axes_do_not_count_for_effective_dimension() -> None:
    assert effective_dimension(CLOUD @ turn()) == pytest.approx(effective_dimension(CLOUD))


SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>", "▁,", "▁.", "▁!", *(f"▁{c}{c}" for c in "abcdefghijkl")]
SELF, CROSS = "decoder.layers.0.self_attn", "decoder.layers.0.encoder_attn"
ENCODER = "encoder.layers.0.self_attn"


@pytest.fixture
def types() -> dict[str, np.ndarray]:
    """Of 19 types; ``▁kk`` is rare enough in all sets to be left out, ``▁ll`` is there twice."""
    n, rng = len(SYMBOLS), np.random.default_rng(5)
    counts = np.array([0, 0, *[90] * (n - 4), 1, 2])
    found = {}
    for side, rare in (("source", slice(7, 12)), ("target", slice(12, 17))):
        train = counts.copy()
        train[rare] = 5
        found |= {f"{side}/symbols": np.array(SYMBOLS), f"{side}/train": train}
        found[f"{side}/embedding"] = rng.normal(size=(n, 6)).astype(np.float32)
    for name in (SELF, CROSS, ENCODER):
        found[f"{name}/count"] = counts.astype(np.float32)
        found[f"{name}/key"] = rng.normal(size=(n, 8)).astype(np.float32)
    return found


VECTORS = {"source embedding": "source/embedding", "target embedding": "target/embedding"} | {
    name: f"{name}/key" for name in (SELF, CROSS, ENCODER)
}


def test_measure_has_all_spaces_with_their_sides_classes(types: dict[str, np.ndarray]) -> None:
    found = measure(types, least_in_train=2)
    assert list(found) == list(VECTORS)
    kept = [2, *range(4, 17), 18]
    for space, name in VECTORS.items():
        rows = types[name][kept]
        side = "target" if space in ("target embedding", SELF) else "source"
        classes = classes_of(SYMBOLS, types[f"{side}/train"])[kept]
        assert found[space] == {
            "types": 15,
            "mean_cosine": round(mean_cosine(rows), 4),
            "isotropy": round(isotropy(rows), 4),
            "centred_isotropy": round(isotropy(rows - rows.mean(0)), 4),
            "effective_dimension": round(effective_dimension(rows), 4),
            "hubness": round(hubness(neighbours(rows - rows.mean(0), 10), 15), 4),
            "silhouette": round(separation(rows - rows.mean(0), classes) or 0, 4),
        }
    sides = [classes_of(SYMBOLS, types[f"{side}/train"])[kept] for side in ("source", "target")]
    assert (sides[0] != sides[1]).any()


@pytest.mark.parametrize(("space", "name"), VECTORS.items())
def test_measure_of_types_that_qualify(types: dict[str, np.ndarray], space: str, name: str) -> None:
    def with_outlier(i: int, least: int = 2) -> dict:
        changed = types[name].copy()
        changed[i] = [1000.0, *[0.0] * (changed.shape[1] - 1)]
        return measure(types | {name: changed}, least, least)[space]

    plain = measure(types, 2, 2)[space]
    for symbol in ("<s>", "<pad>", "<unk>", "▁kk"):
        assert with_outlier(SYMBOLS.index(symbol)) == plain
    assert with_outlier(SYMBOLS.index("▁ll")) != plain
    assert with_outlier(SYMBOLS.index("▁ll"), least=3) == measure(types, 3, 3)[space]
    assert measure(types, 1, 1)[space]["types"] == 16


def test_what_all_have_in_common_does_not_count(types: dict[str, np.ndarray]) -> None:
    """A vector added to every key leaves attention as it is: only the first two figures see it."""
    shifted = measure(types | {f"{CROSS}/key": types[f"{CROSS}/key"] + 5.0})[CROSS]
    plain = measure(types)[CROSS]
    for name in ("centred_isotropy", "effective_dimension", "hubness", "silhouette"):
        assert shifted[name] == pytest.approx(plain[name], abs=2e-4)
    assert shifted["mean_cosine"] > 0.8 > plain["mean_cosine"]
    assert shifted["isotropy"] < 0.8 * plain["isotropy"]


def test_measure_without_classes_to_part(types: dict[str, np.ndarray]) -> None:
    types |= {f"{side}/train": np.array([0] * 7 + [90] * 12) for side in ("source", "target")}
    assert measure(types)["source embedding"]["silhouette"] is None


def test_overlaps_of_each_two(types: dict[str, np.ndarray]) -> None:
    turned = types | {
        SELF + "/key": 3 * types[SELF + "/key"] @ np.linalg.qr(RNG.normal(size=(8, 8)))[0],
        CROSS + "/key": RNG.normal(size=(19, 5)),
        ENCODER + "/count": np.array([9.0] * 10 + [0] * 9),
    }
    shallow = {key: value for key, value in types.items() if not key.startswith(CROSS)}
    found = overlaps({"a": types, "b": turned, "c": shallow}, k=3)
    assert [(each["first"], each["second"]) for each in found] == (
        [("a", "b")] * 5 + [("a", "c")] * 4 + [("b", "c")] * 4
    )
    by_space = {each["space"]: each["overlap"] for each in found[:5]}
    assert list(by_space) == list(VECTORS)
    kept = [2, *range(4, 17), 18]
    rows = (each[CROSS + "/key"][kept] for each in (types, turned))
    a, b = (nearest(each - each.mean(0), 3) for each in rows)
    share = np.mean([len({*one} & {*other}) / 3 for one, other in zip(a, b, strict=True)])
    assert by_space.pop(CROSS) == pytest.approx(share, abs=1e-4)
    # The encoder's: among the few that both have, though b lacks most of a's.
    assert set(by_space.values()) == {1.0}


def test_overlaps_needs_the_same_dictionary(types: dict[str, np.ndarray]) -> None:
    other = types | {"target/symbols": np.array([*SYMBOLS[:-1], "▁other"])}
    with pytest.raises(ValueError, match="plain and normed have different target dictionaries"):
        overlaps({"plain": types, "normed": other})


def test_least_takes_part_in_overlaps(types: dict[str, np.ndarray]) -> None:
    other = types | {"source/embedding": types["source/embedding"].copy()}
    other["source/embedding"][-1] *= -1
    for least, alike in ((2, False), (3, True)):
        found = overlaps({"a": types, "b": other}, least_in_train=least)[0]
        assert found["space"] == "source embedding"
        assert (found["overlap"] == 1) == alike


def test_a_survey_without_a_training_set(types: dict[str, np.ndarray]) -> None:
    del types["target/train"]
    with pytest.raises(ValueError, match=r"no target/train: .* no training set"):
        measure(types)
    with pytest.raises(ValueError, match="no training set"):
        overlaps({"a": types, "b": types})


def test_a_survey_of_too_few_types(types: dict[str, np.ndarray]) -> None:
    types[CROSS + "/count"][:] = 0
    with pytest.raises(ValueError, match=f"{CROSS}: 0 types stand there 2 times"):
        measure(types)
