"""What an engine is started with, by device, and whether this machine can."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.workloads.text import tokenizer_folder

MODEL = "tiny"
NUM_BLOCKS = 1_024
STEP_TOKENS = 2_048
MODEL_LEN = 8_192
LOOK_S = 120.0
SIMULATED_TIME_SCALE = 8.0
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "max_position_embeddings": 32_768,
    "vocab_size": 4_096,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
_SIZES: dict[str, dict[str, int]] = {
    # As Llama 3.2 1B: 2 GB of weights, which is enough to compute for a while.
    "gpu": {
        "hidden_size": 2_048,
        "intermediate_size": 8_192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
    },
    "cpu": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
}


@dataclass(frozen=True, slots=True)
class Device:
    """Where engines run.

    Attributes:
        name: `gpu`, `cpu` or `simulated`.
        python: Of an environment with vLLM; of ours for simulated engines.
        gpus: How many there are.
        block_size: Tokens a block: 16, or 32, the least that vLLM's CPU build takes.
    """

    name: str
    python: str
    gpus: int = 0
    block_size: int = 16

    @property
    def time_scale(self) -> float:
        """Virtual seconds that pass in a real one: simulated engines hurry, and so does their traffic."""
        return SIMULATED_TIME_SCALE if self.name == "simulated" else 1.0

    def command(self, model: Path, port: int, events: int, replay: int) -> list[str]:
        """Return the command of one engine."""
        common = ["--host", "127.0.0.1", "--port", str(port), "--block-size", str(self.block_size)]
        common += ["--max-model-len", str(MODEL_LEN), "--max-num-batched-tokens", str(STEP_TOKENS)]
        if self.name == "simulated":
            own = ["--model", MODEL, "--tokenizer", str(model), "--num-blocks", str(NUM_BLOCKS)]
            own += ["--time-scale", str(self.time_scale)]
            own += ["--events-port", str(events), "--replay-port", str(replay), "--hash-algo", "sha256_cbor"]
            return [self.python, "-m", "router.cli", "simengine", *common, *own]
        sockets = {"endpoint": f"tcp://*:{events}", "replay_endpoint": f"tcp://127.0.0.1:{replay}"}
        config = {"enable_kv_cache_events": True, "publisher": "zmq", **sockets}
        own = ["--model", str(model), "--load-format", "dummy", "--served-model-name", MODEL]
        own += ["--num-gpu-blocks-override", str(NUM_BLOCKS * 16 // self.block_size), "--enable-prompt-tokens-details"]
        own += ["--enable-prefix-caching", "--prefix-caching-hash-algo", "sha256_cbor"]
        own += ["--kv-events-config", json.dumps(config)]
        own += ["--gpu-memory-utilization", "0.4"] if self.name == "gpu" and self.gpus == 1 else []
        own += ["--enforce-eager"] if self.name == "cpu" else []
        # Not `vllm serve`: its command looks its distribution up as `vllm`, which other builds are not named.
        return [self.python, "-m", "vllm.entrypoints.openai.api_server", *common, *own]

    def environment(self, number: int) -> dict[str, str] | None:
        """Return the environment of engine `number`; None: ours."""
        if self.name == "simulated":
            return None
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VLLM"))}
        kept |= {"VLLM_HOST_IP": "127.0.0.1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        kept |= {"VLLM_SERVER_DEV_MODE": "1"}  # for /reset_prefix_cache
        if self.name == "gpu":
            return kept | {"CUDA_VISIBLE_DEVICES": str(number % self.gpus)}
        cores = sorted(os.sched_getaffinity(0))
        return kept | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": str(cores[number % len(cores)])}


@dataclass(slots=True)
class Found:
    """Whether a device can be used.

    Attributes:
        device: None where it can't.
        reason: Why not.
    """

    device: Device | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """Answers what is here.

    Attributes:
        pythons: Where vLLM may be, in this order.
        path: Where programs are looked for.
    """

    pythons: Sequence[str] = (sys.executable,)
    path: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def find(self, name: str) -> Found:
        """Look for what a device needs."""
        if name == "simulated":
            return Found(Device(name, sys.executable))
        gpus = self._gpus() if name == "gpu" else 0
        if name == "gpu" and not gpus:
            return Found(reason="no GPU: nvidia-smi finds none, or is not there")
        for python in self.pythons:
            if self._has_vllm(python):
                return Found(Device(name, python, gpus, block_size=16 if name == "gpu" else 32))
        return Found(reason=f"no vLLM: it can't be imported by {', '.join(self.pythons)} (name one by --python)")

    def _gpus(self) -> int:
        program = shutil.which("nvidia-smi", path=self.path)
        listed = self._run([program, "--list-gpus"]) if program else None
        return sum(line.startswith("GPU ") for line in (listed or "").splitlines())

    def _has_vllm(self, python: str) -> bool:
        return shutil.which(python) is not None and self._run([python, "-c", "import vllm"]) is not None

    def _run(self, command: list[str]) -> str | None:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LOOK_S, env=dict(self.environment))
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None


def make_model(device: Device, folder: Path) -> Path:
    """Write a model without weights: its configuration, and the small tokenizer that all tools share."""
    folder.mkdir(parents=True)
    for file in tokenizer_folder().iterdir():
        if file.is_file():
            shutil.copy(file, folder / file.name)
    config: dict[str, Any] = {**_LLAMA, **_SIZES.get(device.name, _SIZES["cpu"])}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
