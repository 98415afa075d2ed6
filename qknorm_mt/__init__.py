"""QKNorm transformers for fairseq: ``fairseq-train DATA --user-dir qknorm_mt --arch ...``.

Importing this package registers the model and its architectures, nothing else.
"""

from . import compat

compat.check()

from . import model  # noqa: E402,F401  (registers on import, after the check)

__version__ = "0.1.0"
