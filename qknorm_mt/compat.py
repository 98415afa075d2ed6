"""Name library combinations that are known not to work, before they fail deep inside.

Needs nothing but the standard library, so it also runs where the combination is too broken to
import: ``python qknorm_mt/compat.py`` prints the problems and exits 1, or prints what it found.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata

FAIRSEQ_DISTRIBUTIONS = ("ve-fairseq", "fairseq-fixed", "fairseq", "fairseq-built")
REMEDY = "install the pinned set: `make env` in a clone, or see 'Other Pythons' in README.md"


def installed_versions() -> dict[str, str]:
    """Versions of the distributions that matter here, by name; absent ones are left out."""
    names = (*FAIRSEQ_DISTRIBUTIONS, "torch", "hydra-core", "omegaconf", "numpy")
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def release(version: str) -> tuple[int, ...]:
    """Leading numbers of a version: ``2.13.0+cpu`` gives ``(2, 13, 0)``."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def problems(versions: dict[str, str], python: tuple[int, int]) -> list[str]:
    """One sentence for each combination in ``versions`` that is known not to work.

    Args:
        versions: distribution name to version, as :func:`installed_versions` gives.
        python: major and minor version of the interpreter.
    """
    found = []
    fairseqs = [name for name in FAIRSEQ_DISTRIBUTIONS if name in versions]
    hydra = release(versions.get("hydra-core", ""))
    torch = release(versions.get("torch", ""))
    if not fairseqs:
        found.append("no fairseq distribution is installed")
    if len(fairseqs) > 1:
        found.append(
            f"{' and '.join(fairseqs)} are both installed and overwrite each other's `fairseq` "
            "package: uninstall all of them, then install one"
        )
    if fairseqs == ["fairseq"] and release(versions["fairseq"]) <= (0, 12, 2):
        if python >= (3, 11):
            found.append(
                f"fairseq {versions['fairseq']} cannot be imported on Python "
                f"{python[0]}.{python[1]} (mutable dataclass defaults): use ve-fairseq 0.12.3"
            )
        else:
            found.append(
                f"fairseq {versions['fairseq']} trains but `fairseq-generate` fails in its fused "
                "encoder path with current torch: use fairseq's main branch or ve-fairseq 0.12.3"
            )
    if hydra and hydra >= (1, 4):
        found.append(
            f"hydra-core {versions['hydra-core']} dropped the 1.1 compatibility mode that fairseq "
            "0.12 needs: use hydra-core 1.3"
        )
    if torch and torch < (2, 1):
        found.append(
            f"torch {versions['torch']} has no scaled_dot_product_attention with a scale: "
            "use torch 2.13"
        )
    return found


def check() -> None:
    """Raise :class:`ImportError` naming every known-bad combination that is installed."""
    found = problems(installed_versions(), sys.version_info[:2])
    if found:
        raise ImportError("qknorm_mt cannot run here: " + "; ".join(found) + f". To mend: {REMEDY}")


if __name__ == "__main__":
    try:
        check()
    except ImportError as error:
        sys.exit(str(error))
    print(", ".join(f"{name} {version}" for name, version in installed_versions().items()))
