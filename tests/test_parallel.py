"""Under DistributedDataParallel: two gloo processes train as one does on the whole batch."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from .conftest import MODELS, build_qknorm, make_batch


def loss_of(model: torch.nn.Module, seed: int) -> torch.Tensor:
    batch = make_batch(True, seed)
    logits, _ = model(**batch)
    return logits[batch["prev_output_tokens"] != 1].log_softmax(-1)[:, 5].sum()


def worker(rank: int, folder: str, task: SimpleNamespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    gradients = {}
    for name in MODELS:
        # A parameter that takes no part would stop this at the second backward.
        model = DistributedDataParallel(build_qknorm(task, name), find_unused_parameters=False)
        for _ in range(2):
            model.zero_grad()
            loss_of(model, seed=rank).backward()
        gradients[name] = {n: p.grad for n, p in model.module.named_parameters()}
    if rank == 0:
        torch.save(gradients, os.path.join(folder, "gradients.pt"))
    dist.destroy_process_group()


def test_two_processes_give_the_gradients_of_one(task: SimpleNamespace, tmp_path: Path) -> None:
    mp.spawn(worker, (str(tmp_path), task), nprocs=2)
    gradients = torch.load(tmp_path / "gradients.pt", weights_only=True)
    for name in MODELS:
        model = build_qknorm(task, name)
        (sum(loss_of(model, seed) for seed in (0, 1)) / 2).backward()
        for path, parameter in model.named_parameters():
            torch.testing.assert_close(
                gradients[name][path], parameter.grad, atol=1e-5, rtol=1e-4, msg=f"{name} {path}"
            )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["none", "l2", "layernorm", "rmsnorm", "qwen3"])
def test_torch_compile_gives_the_same_outputs_and_gradients(name: str) -> None:
    """Traced whole, without a graph break; run by torch itself, so that no compiler is needed."""
    from .test_attention import CAUSAL, DIM, build

    results = []
    for compiled in (False, True):
        module = build(name)
        run = torch.compile(module, backend="aot_eager", fullgraph=True) if compiled else module
        torch.manual_seed(0)
        x = torch.randn(6, 3, DIM, requires_grad=True)
        output, _ = run(x, x, x, attn_mask=torch.empty(CAUSAL))
        output.sin().sum().backward()
        results.append((output, x.grad, [p.grad for p in module.parameters()]))
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-5)


def test_torch_compile_of_the_whole_model(task: SimpleNamespace) -> None:
    results = []
    for compiled in (False, True):
        model = build_qknorm(task, "l2", dropout=0.1, cpu_dropout="bytes").eval()
        run = torch.compile(model, backend="aot_eager") if compiled else model
        loss = loss_of(run, seed=0)
        loss.backward()
        results.append((loss, [p.grad for p in model.parameters()]))
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-4)
