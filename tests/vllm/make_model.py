"""Make the tiny model that the tests serve: a Llama of random weights (hidden 64, 2 layers) and our golden tokenizer.

Run by the engine's own Python, which has torch and transformers:  `python make_model.py TOKENIZER_DIR OUT_DIR`.
Takes some 15 s (nearly all of it imports) and writes about 1 MB. The weights come from a fixed seed, so every run
makes the same model; its text is nonsense, which is all that a test about prefixes needs.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

SEED = 20_260_801
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


def main() -> None:
    """Read the two folders from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path, help="folder with the tokenizer, chat template and config.json")
    parser.add_argument("out", type=Path, help="folder to write")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    make(arguments.tokenizer, arguments.out)


if __name__ == "__main__":
    main()
