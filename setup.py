"""The wheel holds the plugin alone; data preparation and experiments run from a clone.

Exact versions stand in constraints.txt (and fairseq.txt, which adds hashes); here is what is
needed at all.
"""

from pathlib import Path

from setuptools import setup

PLUGIN = [
    "hydra-core>=1.3.2,<1.4",
    "numpy",
    "sacrebleu>=2.6",
    "torch>=2.6",
    "ve-fairseq==0.12.3",
]
EXPERIMENTS = [
    "filelock>=3.30",  # leases
    "hydra-joblib-launcher",
    "hydra-submitit-launcher",
    "jinja2",
    "matplotlib",
    "pandas",
    "pyyaml",
    "regex",
    "requests",
    "rich",
    "sacremoses",
    "scikit-learn",
    "scipy",
    "sentencepiece",
    "subword-nmt",
    "tabulate",
    "tensorboardX",
    "tqdm",
]
DEVELOPMENT = [
    "hypothesis",
    "mypy",
    "playwright",  # looks at the report in Debian's chromium
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "ruff",
    "transformers<5",  # another implementation of Qwen3's attention, for a test alone
]

setup(
    name="qknorm-mt",
    version="0.1.0",
    description="Query-key normalised transformers for low-resource machine translation (fairseq)",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=["qknorm_mt"],
    python_requires=">=3.11,<3.13",  # ve-fairseq has wheels for these two
    install_requires=PLUGIN,
    extras_require={"experiments": EXPERIMENTS, "dev": EXPERIMENTS + DEVELOPMENT},
)
