"""`make test-gpu`: it skips where it must, and the rest of it runs on simulated engines."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest

from router.tools.gpu.__main__ import main
from router.tools.gpu.engines import SIMULATED_TIME_SCALE, Device, Machine


def program(folder: Path, name: str, script: str) -> str:
    """A program that can be run."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_without_a_gpu_it_is_skipped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a reason and exit code 0, and before anything is started."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([]) == 0
    assert capsys.readouterr().out == "skipped: no GPU: nvidia-smi finds none, or is not there\n"


def test_a_driver_without_gpus_is_no_gpu(tmp_path: Path) -> None:
    """As nvidia-smi says it, or fails."""
    for script in ("echo No devices were found", "exit 9"):
        program(tmp_path, "nvidia-smi", script)
        found = Machine((sys.executable,), str(tmp_path)).find("gpu")
        assert found.device is None
        assert found.reason.startswith("no GPU")


def test_gpus_without_vllm_are_skipped_too(tmp_path: Path) -> None:
    """The reason tells where it was looked for."""
    program(tmp_path, "nvidia-smi", "echo 'GPU 0: NVIDIA L4 (UUID: GPU-1)'")
    python = program(tmp_path, "python-without", "exit 1")
    found = Machine((python, "/nowhere/python"), str(tmp_path)).find("gpu")
    assert found.device is None
    assert found.reason == f"no vLLM: it can't be imported by {python}, /nowhere/python (name one by --python)"


def test_gpus_are_used(tmp_path: Path) -> None:
    """Dummy weights and blocks of 16; one GPU is shared by halves, of several each engine has its own."""
    program(tmp_path, "nvidia-smi", "echo 'GPU 0: NVIDIA L4 (UUID: 1)'; echo 'GPU 1: NVIDIA L4 (UUID: 2)'")
    python = program(tmp_path, "python-with", "exit 0")
    device = Machine(("/nowhere/python", python), str(tmp_path)).find("gpu").device
    assert device == Device("gpu", python, gpus=2, block_size=16)
    command = device.command(tmp_path, 1, 2, 3)
    words = list(itertools.pairwise(command))
    assert ("--load-format", "dummy") in words
    assert ("--block-size", "16") in words
    assert "--gpu-memory-utilization" not in command
    assert [(device.environment(number) or {})["CUDA_VISIBLE_DEVICES"] for number in range(3)] == ["0", "1", "0"]
    shared = Device("gpu", python, gpus=1).command(tmp_path, 1, 2, 3)
    assert ("--gpu-memory-utilization", "0.4") in itertools.pairwise(shared)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_but_the_gpu_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both policies on the same traffic, no request fails, `cost` hits more; the model is the simulated engine's."""
    words = ["--device", "simulated", "--workload", "documents", "--repeats", "1", "--batches", "1,2"]
    assert main([*words, "--logs", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    round_robin, cost = told["rows"]
    assert cost["hit_rate"] > round_robin["hit_rate"] > 0
    assert cost["requests"] == round_robin["requests"] > 50
    # Simengine's defaults, as many times faster; a machine that is busy makes them slower.
    assert 0.2 * 8_000 < told["model"]["prefill_tokens_per_s"] / SIMULATED_TIME_SCALE < 1.5 * 8_000
    assert 0.9 * 0.025 < told["model"]["decode_step_s"] * SIMULATED_TIME_SCALE < 5 * 0.025
