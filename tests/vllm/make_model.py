"""Make the tiny model that the tests serve: a Llama of random weights (hidden 64, 2 layers) and our golden tokenizer.

Run by the engine's own Python, which has torch and transformers:

    python make_model.py TOKENIZER_DIR OUT_DIR [--adapter NAME]...

Each adapter is a LoRA of random weights in OUT_DIR/adapters/NAME. Takes some 15 s (nearly all of it imports) and
writes about 1 MB. The weights come from a fixed seed, so every run makes the same model; its text is nonsense, which
is all that a test about prefixes needs.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

SEED = 20_260_801
RANK = 8
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def make(tokenizer: Path, out: Path) -> None:
    """Write the model's folder: `config.json` is the tokenizer folder's, the weights are drawn from `SEED`."""
    import torch
    from transformers import AutoConfig, GenerationConfig, LlamaForCausalLM

    config = AutoConfig.from_pretrained(tokenizer)
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    # No eos in the generation config: an answer is then as long as `max_tokens` says, which tests count on.
    model.generation_config = GenerationConfig(do_sample=False)
    model.save_pretrained(out)
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, out / name)


def make_adapter(model: Path, name: str, number: int) -> None:
    """Write a LoRA of rank 8 on the attention's queries and values beside a model; `number` draws its weights."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    sizes = {"q_proj": config["num_attention_heads"] * head_dim, "v_proj": config["num_key_value_heads"] * head_dim}
    draw = torch.Generator().manual_seed(SEED + number)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for projection, size in sizes.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{projection}"
            tensors[f"{at}.lora_A.weight"] = torch.randn(RANK, hidden, generator=draw)
            tensors[f"{at}.lora_B.weight"] = torch.randn(size, RANK, generator=draw)
    out = model / "adapters" / name
    out.mkdir(parents=True)
    save_file(tensors, out / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "bias": "none", "target_modules": list(sizes)}
    (out / "adapter_config.json").write_text(json.dumps(about), encoding="utf-8")


def main() -> None:
    """Read the two folders from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path, help="folder with the tokenizer, chat template and config.json")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--adapter", action="append", default=[], metavar="NAME", help="make a LoRA of this name too")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    make(arguments.tokenizer, arguments.out)
    for number, name in enumerate(arguments.adapter, start=1):
        make_adapter(arguments.out, name, number)


if __name__ == "__main__":
    main()
