"""QKNorm transformers for fairseq: ``fairseq-train DATA --user-dir qknorm_mt --arch ...``.

Importing this package registers the model and its architectures, the translation task, the
criterion, the learning-rate schedule and the optimizer, nothing else.
"""

from . import compat

compat.check()

from . import criterion, lr_scheduler, model, optimizer, probes, task  # noqa: E402,F401  (each registers itself)

__version__ = "0.1.0"
