"""The geometry of embeddings and keys: how even a cloud of vectors is, how well its classes part.

"Denser, better separated clusters" is said of query-key normalisation. The figures here do not
depend on how long a system's vectors are, which normalisation changes by itself: all but
:func:`effective_dimension` look at nothing but the directions of rows. Nor do they depend on the
axes, which each training has of its own: systems are compared by who is near whom.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import scipy.stats
from sklearn.metrics import silhouette_score
from sklearn.neighbors import NearestNeighbors

from .classes import RARE, classes_of

NEIGHBOURS = 10
LEAST = 2  # times in the set surveyed
LEAST_IN_TRAIN = RARE + 1  # embeddings of rarer types are near where they started, and hubs
DIGITS = 4


def directions(x: np.ndarray) -> np.ndarray:
    """The rows of ``x``, ``(n, d)``, divided by their lengths; rows of zeros are left out.

    Raises:
        ValueError: if fewer than two are left.
    """
    x = np.asarray(x, dtype=np.float64)
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    real = lengths[:, 0] > 0
    if real.sum() < 2:
        raise ValueError(f"{real.sum()} rows of {len(x)} have a direction, which is too few")
    return x[real] / lengths[real]


def mean_cosine(x: np.ndarray) -> float:
    """Mean cosine of all pairs of different rows of ``x``, ``(n, d)``; rows of zeros left out.

    Exact without the ``n^2`` pairs: the sum of n unit vectors has the squared length
    ``n + n (n - 1) mean``. Raises as :func:`directions` does.
    """
    unit = directions(x)
    n = len(unit)
    total = unit.sum(axis=0)
    return float((total @ total - n) / (n * (n - 1)))


def isotropy(x: np.ndarray) -> float:
    """How alike all directions are to the cloud ``x``, ``(n, d)``: 1 if they all are.

    Least over greatest ``Z(c) = sum_i exp(c . x_i)``, c among the eigenvectors of ``x^T x``
    (Mu & Viswanath 2018), each with both signs. Of the directions of rows, so that the result
    does not depend on a system's scale; it is exp(-2) if all rows point one way, and never less.
    Raises as :func:`directions` does.
    """
    unit = directions(x)
    along = unit @ np.linalg.eigh(unit.T @ unit)[1]
    z = np.concatenate([np.exp(along).sum(axis=0), np.exp(-along).sum(axis=0)])
    return float(z.min() / z.max())


def effective_dimension(x: np.ndarray) -> float:
    """Share of the d dimensions that ``x``, ``(n, d)``, fills: 1 if it varies alike in all of
    them, 1/d on a line, 0 if all rows are the same.

    Participation ratio of the covariance's eigenvalues l, ``(sum l)^2 / sum l^2``, over d.
    """
    x = np.asarray(x, dtype=np.float64)
    if not np.ptp(x, axis=0).any():
        return 0.0
    centred = x - x.mean(axis=0)
    # Traces of the covariance and of its square: the sums over eigenvalues, short of a factor.
    covariance = centred.T @ centred
    return float(np.trace(covariance) ** 2 / (covariance**2).sum() / x.shape[1])


def neighbours(x: np.ndarray, k: int = NEIGHBOURS) -> np.ndarray:
    """The k nearest other rows of each row of ``x``, ``(n, d)``, by cosine.

    Returns:
        indices, ``(n, k)``, nearest first; ``(n, n - 1)`` where there are no more.
    """
    search = NearestNeighbors(n_neighbors=min(k, len(x) - 1), metric="cosine", algorithm="brute")
    search.fit(np.asarray(x, dtype=np.float64))
    # Without an argument a row is not its own neighbour, not even if it has a duplicate.
    return search.kneighbors(return_distance=False)


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Mean share of :func:`neighbours` in common, of the same n items in two spaces.

    Unrelated spaces have ``k / (n - 1)``.

    Raises:
        ValueError: if the numbers of items or of neighbours differ.
    """
    if a.shape != b.shape:
        raise ValueError(f"neighbours of shapes {a.shape} and {b.shape} cannot be compared")
    return float((a[:, :, None] == b[:, None, :]).any(axis=2).mean())


def hubness(neighbours: np.ndarray, n: int) -> float:
    """Skewness of how often each of n items is among the others' neighbours (Radovanovic et al.
    2010): 0 if all are alike, above 0 if a few are everybody's neighbours."""
    times = np.bincount(neighbours.ravel(), minlength=n)
    return float(scipy.stats.skew(times)) if np.ptp(times) else 0.0


def separation(x: np.ndarray, classes: np.ndarray) -> float | None:
    """Mean silhouette (Rousseeuw 1987) of the rows of ``x``, ``(n, d)``, by cosine distance.

    From -1 to 1: 1 if classes are dense and far apart, 0 if they lie in one another.

    Args:
        classes: ``(n,)``, numbers; rows of a negative one, or alone in theirs, are left out.

    Returns:
        None where fewer than two classes are left.
    """
    members = np.bincount(classes[classes >= 0])
    if (members >= 2).sum() < 2:
        return None
    chosen = np.isin(classes, np.flatnonzero(members >= 2))
    return float(silhouette_score(x[chosen], classes[chosen], metric="cosine"))


class Space(NamedTuple):
    """Vectors of token types: ``rows`` ``(n, d)``, their ``ids`` in the dictionary and their
    ``classes``, both ``(n,)``."""

    name: str
    rows: np.ndarray
    ids: np.ndarray
    classes: np.ndarray


def spaces(
    types: Mapping[str, np.ndarray], least: int = LEAST, least_in_train: int = LEAST_IN_TRAIN
) -> Iterator[Space]:
    """The embeddings of both sides, then the mean keys of each attention module.

    Args:
        types: a survey's arrays (:mod:`qknorm_mt.survey`).
        least: how often a type must stand in the set surveyed for its key to count. Padding,
            unknown words and the like never do.
        least_in_train: how often in the training set, for its embedding.

    Raises:
        ValueError: if the survey knows of no training set, or if fewer than two types are left.
    """
    classes = {side: classes_on(types, side) for side in ("source", "target")}
    found = [
        (f"{side} embedding", side, f"{side}/train", f"{side}/embedding", least_in_train)
        for side in classes
    ]
    modules = [name.removesuffix("/key") for name in types if name.endswith("/key")]
    found += [(name, side_of(name), f"{name}/count", f"{name}/key", least) for name in modules]
    for name, side, counts, vectors, times in found:
        ids = np.flatnonzero((types[counts] >= times) & (classes[side] >= 0))
        if len(ids) < 2:
            raise ValueError(f"{name}: {len(ids)} types stand there {times} times or more")
        yield Space(name, types[vectors][ids], ids, classes[side][ids])


def classes_on(types: Mapping[str, np.ndarray], side: str) -> np.ndarray:
    if f"{side}/train" not in types:
        raise ValueError(f"no {side}/train: the survey's data folder has no training set")
    return classes_of(types[f"{side}/symbols"].tolist(), types[f"{side}/train"])


def side_of(module: str) -> str:
    """Whose tokens an attention module's keys are of."""
    own = module.startswith("decoder.") and module.endswith("self_attn")
    return "target" if own else "source"


def measure(
    types: Mapping[str, np.ndarray], least: int = LEAST, least_in_train: int = LEAST_IN_TRAIN
) -> dict[str, dict[str, int | float | None]]:
    """All figures of one survey, by space: see :func:`spaces`."""
    return {space.name: figures(space) for space in spaces(types, least, least_in_train)}


def figures(space: Space) -> dict[str, int | float | None]:
    """Of a space as it is, its mean cosine and isotropy; all others, and isotropy again, of its
    vectors less their mean.

    What all keys have in common adds the same to every logit of a query, and so changes no
    attention: how far they differ shows without it.
    """
    rows, n = space.rows, len(space.rows)
    centred = less_mean(rows)
    silhouette = separation(centred, space.classes)
    return {
        "types": n,
        "mean_cosine": round(mean_cosine(rows), DIGITS),
        "isotropy": round(isotropy(rows), DIGITS),
        "centred_isotropy": round(isotropy(centred), DIGITS),
        "effective_dimension": round(effective_dimension(rows), DIGITS),
        "hubness": round(hubness(neighbours(centred), n), DIGITS),
        "silhouette": None if silhouette is None else round(silhouette, DIGITS),
    }


def less_mean(rows: np.ndarray) -> np.ndarray:
    centred: np.ndarray = rows - rows.mean(axis=0)
    return centred


def overlaps(
    surveys: Mapping[str, Mapping[str, np.ndarray]],
    least: int = LEAST,
    least_in_train: int = LEAST_IN_TRAIN,
    k: int = NEIGHBOURS,
) -> list[dict[str, str | float]]:
    """How far each two surveys agree on who is near whom, in each space that both have.

    Neighbours are sought among the types that qualify in both (see :func:`spaces`).

    Raises:
        ValueError: if their dictionaries differ, or as :func:`spaces` does.
    """
    found = {
        name: {space.name: space for space in spaces(types, least, least_in_train)}
        for name, types in surveys.items()
    }
    result: list[dict[str, str | float]] = []
    for first, second in itertools.combinations(surveys, 2):
        for side in ("source", "target"):
            name = f"{side}/symbols"
            if not np.array_equal(surveys[first][name], surveys[second][name]):
                raise ValueError(f"{first} and {second} have different {side} dictionaries")
        for name, one in found[first].items():
            if name in found[second]:
                share = agreement(one, found[second][name], k)
                pair = {"first": first, "second": second, "space": name}
                result.append({**pair, "overlap": round(share, DIGITS)})
    return result


def agreement(one: Space, other: Space, k: int) -> float:
    _, mine, theirs = np.intersect1d(one.ids, other.ids, return_indices=True)
    rows = less_mean(one.rows[mine]), less_mean(other.rows[theirs])
    return overlap(*(neighbours(each, k) for each in rows))
