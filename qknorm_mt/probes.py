"""Probes while training: what attention does to one fixed batch of dev, every N updates.

Options of ``--task translation_qknorm`` and of ``--task translation_probed``, which is fairseq's
``translation`` with them. A probe reads the model and draws no random number: weights and logs of
a training are the same with and without.

One line of JSON a probe, in ``probes.jsonl`` beside the checkpoints or where ``--probe-file`` says,
the first line naming the batch; and TensorBoard's curves, heads taken together, in
``<--tensorboard-logdir>/probes``. A training that goes on from a checkpoint takes back what was
probed after it.
"""

import json
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional

import torch
from fairseq import utils
from fairseq.dataclass import FairseqDataclass
from fairseq.distributed import utils as distributed_utils
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import II
from torch import Tensor, nn

from .config import refuse_option
from .measures import figures_of
from .observe import Place, Seen, Tokens, norm_of, observed, places, tokens_of

NAME = "probes.jsonl"
SHARE = 0.05  # of training time that probes should stay under
SETTLED = 5  # probes before their share is told

logger = logging.getLogger(__name__)


@dataclass
class ProbeConfig(FairseqDataclass):
    """Options of both tasks."""

    probe_every: int = field(
        default=0,
        metadata={"help": "probe attention every so many updates, and at the start; 0: never"},
    )
    probe_sentences: int = field(
        default=16, metadata={"help": "sentences of dev, evenly spread, that are probed"}
    )
    probe_file: Optional[str] = field(
        default=None, metadata={"help": f"where probes go; default: {NAME} in --save-dir"}
    )
    save_dir: str = II("checkpoint.save_dir")
    valid_subset: str = II("dataset.valid_subset")
    tensorboard_logdir: Optional[str] = II("common.tensorboard_logdir")


@dataclass
class ProbedTranslationConfig(TranslationConfig, ProbeConfig):
    """fairseq's ``translation`` with probes."""


class Probed:
    """What makes a task probe: mixed into tasks whose config has :class:`ProbeConfig`'s options."""

    cfg: Any
    probe: "Probe | None" = None

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """fairseq's hook; refuses, before a training, options that do not go with probes.

        Raises:
            ValueError: naming the option.
        """
        if not from_checkpoint:
            if self.cfg.probe_every < 0:
                refuse_option(self.cfg, "probe_every", "at least 0")
            if self.cfg.probe_every and self.cfg.probe_sentences < 1:
                refuse_option(self.cfg, "probe_sentences", "at least 1")
            if self.cfg.probe_every and getattr(cfg, "checkpoint_activations", False):
                refuse_option(cfg, "checkpoint_activations", "False with probe_every")
        return super().build_model(cfg, from_checkpoint)  # type: ignore[misc]

    def optimizer_step(self, optimizer: Any, model: Any, update_num: int) -> None:
        """fairseq's hook for an update."""
        step = super().optimizer_step  # type: ignore[misc]
        if self.cfg.probe_every < 1 or distributed_utils.get_global_rank() != 0:
            step(optimizer, model=model, update_num=update_num)
            return
        bare = unwrapped(model)
        if self.probe is None:
            self.probe = Probe(self, bare, update_num)
        due = (update_num + 1) % self.cfg.probe_every == 0
        before = [p.detach().clone() for p in bare.parameters()] if due else []
        step(optimizer, model=model, update_num=update_num)
        if due:
            self.probe.take(bare, update_num + 1, update_ratio(before, bare))


@register_task("translation_probed", dataclass=ProbedTranslationConfig)
class ProbedTranslationTask(Probed, TranslationTask):
    """fairseq's translation task, with probes."""


def unwrapped(model: Any) -> Any:
    while hasattr(model, "module"):
        model = model.module
    return model


class Probe:
    """The probes of one training, from where it starts or goes on.

    Raises:
        ValueError: if the file's probes are of another batch.
    """

    def __init__(self, task: Any, model: Any, updates: int):
        cfg = task.cfg
        self.path = Path(cfg.probe_file or Path(cfg.save_dir) / NAME)
        self.started, self.spent, self.count, self.warned = time.monotonic(), 0.0, 0, False
        self.sample, batch = batch_of(task, model, cfg.probe_sentences)
        self.tokens = tokens_of(self.sample, model)
        self.writer = writer_of(cfg.tensorboard_logdir, updates)
        records = earlier(self.path, batch, updates)
        write_lines(self.path, [{"batch": batch}, *records])
        if updates == 0:
            self.take(model, 0, None)

    def take(self, model: Any, updates: int, ratio: float | None) -> None:
        begun = time.monotonic()
        record = {"updates": updates, **probed(model, self.sample, self.tokens)}
        record["model"]["update_ratio"] = ratio
        self.spent += time.monotonic() - begun
        record["seconds"] = round(time.monotonic() - begun, 3)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(rounded(record)) + "\n")
        if self.writer is not None:
            for name, value in curves(record):
                self.writer.add_scalar(name, value, updates)
            self.writer.flush()
        self.count += 1
        share = self.spent / max(time.monotonic() - self.started, 1e-9)
        if share > SHARE and self.count > SETTLED and not self.warned:
            self.warned = True
            logger.warning(f"probes take {share:.0%} of the training time: raise --probe-every")


def rounded(value: Any) -> Any:
    """Numbers to six digits: float32 has hardly more."""
    if isinstance(value, dict):
        return {name: rounded(v) for name, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def batch_of(task: Any, model: Any, sentences: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A batch of dev sentences that stand evenly spread, on the model's device; what it is of."""
    subset = task.cfg.valid_subset.split(",")[0]
    if subset not in task.datasets:  # a training that does not validate has not loaded it
        task.load_dataset(subset)
    dataset = task.dataset(subset)
    ids = evenly(dataset, model.max_positions(), sentences)
    sample = dataset.collater([dataset[i] for i in ids])
    device = next(model.parameters()).device
    moved: Dict[str, Any] = utils.apply_to_sample(lambda t: t.to(device), sample)
    tokens = {"source_tokens": int(sample["net_input"]["src_lengths"].sum())}
    tokens["target_tokens"] = int(sample["ntokens"])
    return moved, {"subset": subset, "sentences": ids, **tokens}


def evenly(dataset: Any, longest: tuple[int, int], sentences: int | None) -> list[int]:
    """So many sentences, all by default, that stand evenly spread among those a model reads."""
    sizes = zip(dataset.src_sizes, dataset.tgt_sizes, strict=True)
    short = [i for i, (s, t) in enumerate(sizes) if s <= longest[0] and t <= longest[1]]
    wanted = len(short) if sentences is None else min(sentences, len(short))
    return [short[i * len(short) // wanted] for i in range(wanted)]


def writer_of(folder: str | None, updates: int) -> Any:
    if not folder:
        return None
    from tensorboardX import SummaryWriter

    return SummaryWriter(str(Path(folder) / "probes"), purge_step=updates + 1)


def earlier(path: Path, batch: dict[str, Any], updates: int) -> List[dict[str, Any]]:
    """What was probed up to the checkpoint that a training goes on from."""
    if updates == 0 or not path.exists():
        return []
    found, records = read_probes(path)
    if found != batch:
        raise ValueError(
            f"{path} has probes of another batch of dev: go on with the same --probe-sentences "
            "and data, or give another --probe-file"
        )
    return [record for record in records if record["updates"] <= updates]


def read_probes(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The batch and the probes of a file; a last line that a kill cut short does not count."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    return (lines[0]["batch"], lines[1:]) if lines else ({}, [])


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    partial.replace(path)


def probed(model: Any, sample: dict[str, Any], tokens: Tokens) -> dict[str, Any]:
    """Figures of a model as it is: its gradients are those of the batch's loss, without dropout.

    Returns:
        ``model``: ``loss`` (nats a token, no label smoothing), ``grad_norm``, ``weight_norm``,
        ``embedding_norm`` (mean length of the encoder's and the decoder's word vectors);
        ``modules``: by name, figures by head (see :class:`measures.HeadFigures`), ``q_grad``,
        ``k_grad`` (norm of the gradient of each head's rows of the projections), ``g``,
        ``g_grad``, ``q_spectral``, ``k_spectral`` (largest singular value of the projections).
    """
    found: dict[str, dict[str, Any]] = {}

    def each(place: Place, seen: Seen) -> None:
        real = tokens.queries(place.kind)[1], tokens.keys(place.kind)[1]
        found[place.name] = figures_of(seen, *real)

    training = model.training
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices):
        model.eval()
        attentions = places(model)  # in training, a model with layerdrop would leave some out
        try:
            with observed(model, tokens, each), torch.enable_grad():
                loss = nll(model, sample, tokens)
            parameters = [p for p in model.parameters() if p.requires_grad]
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        finally:
            model.train(training)
    grads = dict(zip(parameters, gradients, strict=True))
    for place in attentions:
        found[place.name] |= of_weights(place.module, grads)
    whole = {"loss": loss.item(), "grad_norm": norm([g for g in gradients if g is not None])}
    return {"model": {**whole, **whole_model(model)}, "modules": found}


def whole_model(model: Any) -> dict[str, float]:
    """Length of all weights together, and the mean length of word vectors."""
    embeddings = [model.encoder.embed_tokens.weight, model.decoder.embed_tokens.weight]
    lengths = [w.detach().float().norm(dim=-1).mean() for w in embeddings]
    return {
        "weight_norm": norm(model.parameters()),
        "embedding_norm": float(torch.stack(lengths).mean()),
    }


def nll(model: Any, sample: dict[str, Any], tokens: Tokens) -> Tensor:
    """Mean negative log-likelihood of the target's tokens, in nats."""
    output = model(**sample["net_input"])
    scores = model.get_normalized_probs(output, log_probs=True, sample=sample)
    target = model.get_targets(sample, output)
    likely = scores.float().gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return -likely[tokens.target_real].mean()


def of_weights(module: Any, grads: dict[nn.Parameter, Tensor | None]) -> dict[str, Any]:
    """Figures of a module's weights and their gradients."""
    figures: dict[str, Any] = {}
    for name in ("q", "k"):
        weight = getattr(module, f"{name}_proj").weight
        gradient = grads.get(weight)
        if gradient is not None:
            by_head = gradient.float().view(module.num_heads, -1)
            figures[f"{name}_grad"] = by_head.norm(dim=-1).tolist()
        figures[f"{name}_spectral"] = spectral_norm(weight)
    g = norm_of(module).g
    if g is not None:
        figures["g"] = g.detach().float().tolist()
        gradient = grads.get(g)
        figures["g_grad"] = None if gradient is None else gradient.abs().float().tolist()
    return figures


def spectral_norm(weight: Tensor) -> float:
    """Largest singular value, by the eigenvalues of the Gram matrix, which are quicker to get."""
    wide = weight.detach().double()
    if not torch.isfinite(wide).all():
        return float("nan")
    return float(torch.linalg.eigvalsh(wide @ wide.T)[-1].clamp(min=0).sqrt())


def norm(tensors: Any) -> float:
    """L2 norm of all numbers together."""
    return float(torch.stack([t.detach().float().norm() for t in tensors]).norm())


def update_ratio(before: list[Tensor], model: Any) -> float:
    """Length of an update over that of the weights before it."""
    changes = [p.detach() - old for p, old in zip(model.parameters(), before, strict=True)]
    return norm(changes) / max(norm(before), 1e-30)


def curves(record: dict[str, Any]) -> list[tuple[str, float]]:
    """Names and values for TensorBoard: of a module's heads the largest logit, else the mean."""
    found = [(f"probe/{n}", v) for n, v in record["model"].items() if v is not None]
    for module, figures in record["modules"].items():
        for name, value in figures.items():
            if isinstance(value, list):
                value = max(value) if name == "logit_max" else sum(value) / len(value)
            if value is not None:
                found.append((f"probe/{name}/{module}", value))
    return found
