"""The design's walls: who imports whom, and which combinations of libraries are refused."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from qknorm_mt.compat import problems

from .conftest import ROOT

PACKAGES = ("qknorm_mt", "data_prep", "experiments")


def imported(path: Path) -> set[str]:
    """Top-level names a module imports from elsewhere."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_do_not_import_each_other(package: str) -> None:
    others = set(PACKAGES) - {package}
    for path in (ROOT / package).rglob("*.py"):
        assert not imported(path) & others, path


GOOD = {"ve-fairseq": "0.12.3", "torch": "2.13.0+cpu", "hydra-core": "1.3.8"}


@pytest.mark.parametrize(
    ("changes", "python", "message"),
    [
        ({}, (3, 11), None),
        ({"hydra-core": "1.3.2"}, (3, 12), None),
        ({"hydra-core": "1.4.0"}, (3, 11), "hydra-core 1.4.0 dropped"),
        ({"torch": "2.0.1"}, (3, 11), "torch 2.0.1 has no scaled_dot_product_attention"),
        ({"fairseq": "0.12.2"}, (3, 11), "fairseq and ve-fairseq|ve-fairseq and fairseq"),
        ({"ve-fairseq": None}, (3, 11), "no fairseq distribution"),
        ({"ve-fairseq": None, "fairseq": "0.12.2"}, (3, 11), "cannot be imported on Python 3.11"),
        ({"ve-fairseq": None, "fairseq": "0.12.2"}, (3, 10), "`fairseq-generate` fails"),
    ],
)
def test_bad_combinations_are_named(
    changes: dict, python: tuple[int, int], message: str | None
) -> None:
    versions = {k: v for k, v in {**GOOD, **changes}.items() if v is not None}
    found = problems(versions, python)
    if message is None:
        assert found == []
    else:
        assert len(found) == 1
        assert any(part in found[0] for part in message.split("|"))
