"""``hydra/launcher=submitit_slurm`` and ``submitit_local``: each job asks for what it needs.

hydra-submitit-launcher submits a sweep as one SLURM array with one request, read before the sweep
is expanded. Here the launcher's settings are read for each job, so that they may depend on its pair
and recipe, and jobs that ask for the same share an array. And a job that was killed is a result as
any other: the sweep waits for the rest.

Hydra finds launchers in the package ``hydra_plugins`` alone, hence this file's place.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import CompactHydraException
from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher
from omegaconf import OmegaConf

ENDING = 10.0  # seconds that cancelled jobs have to end
ROOT = Path(__file__).resolve().parents[1]


class SlurmArrays(BaseSubmititLauncher):
    """One SLURM array for each distinct request of the jobs."""

    _EXECUTOR = "slurm"

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        # Jobs find this file and the runner wherever SLURM starts them.
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        arrays: dict[str, list[tuple[int, list[str]]]] = defaultdict(list)
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            arrays[self.request(overrides)].append((number, list(overrides)))
        submitted: dict[int, Any] = {}
        try:
            for request, jobs in arrays.items():
                submitted |= self.submit(json.loads(request), jobs)
            return [result_of(submitted[number]) for number in sorted(submitted)]
        except BaseException:  # Ctrl-C stops the jobs of a sweep, wherever they run
            for job in submitted.values():
                job.cancel(check=False)
            deadline = time.monotonic() + ENDING
            while time.monotonic() < deadline and not all(j.done() for j in submitted.values()):
                time.sleep(0.5)
            raise

    def request(self, overrides: Sequence[str]) -> str:
        """The launcher's settings in a job's own config, as JSON."""
        assert self.hydra_context is not None and self.config is not None
        loader = self.hydra_context.config_loader
        config = loader.load_sweep_config(self.config, list(overrides))
        settings = OmegaConf.to_container(config.hydra.launcher, resolve=True)
        assert isinstance(settings, dict)
        del settings["_target_"]
        return json.dumps(settings, sort_keys=True)

    def submit(
        self, request: dict[str, Any], jobs: Sequence[tuple[int, list[str]]]
    ) -> dict[int, Any]:
        """Submit jobs that ask for the same; submitit's jobs by number."""
        import submitit  # slow, and Hydra reads this file whatever the launcher

        start = {"folder": request.pop("submitit_folder")}
        if "max_num_timeout" in request:
            start[f"{self._EXECUTOR}_max_num_timeout"] = request.pop("max_num_timeout")
        executor = submitit.AutoExecutor(cluster=self._EXECUTOR, **start)
        shared = OmegaConf.structured(BaseQueueConf)
        executor.update_parameters(
            **{n if n in shared else f"{self._EXECUTOR}_{n}": v for n, v in request.items()}
        )
        state = Singleton.get_state()
        calls = [
            (overrides, "hydra.sweep.dir", number, f"job_id_for_{number}", state)
            for number, overrides in jobs
        ]
        try:
            found = executor.map_array(self, *zip(*calls, strict=True))
        except (submitit.core.utils.FailedJobError, RuntimeError) as error:
            raise CompactHydraException(f"the jobs cannot be submitted: {error}") from error
        print(f"submitted {len(found)} jobs, from {found[0].job_id} on", flush=True)
        return {number: job for (number, _), job in zip(jobs, found, strict=True)}


class LocalProcesses(SlurmArrays):
    """The same on this machine, to try a cluster's sweep out: all jobs at once."""

    _EXECUTOR = "local"


def result_of(job: Any) -> JobReturn:
    """What a job returned; NaN if it ended otherwise, which the sweep's summary explains."""
    try:
        returned: JobReturn = job.result()
        return returned
    except Exception as error:
        said = str(error).partition("\n")[0]
        print(f"{job}: {type(error).__name__}: {said}", flush=True)
        return JobReturn(_return_value=math.nan, status=JobStatus.COMPLETED)
