"""Make the tiny models that the tests serve: random weights (a Llama of hidden 64 with 2 layers) and a tokenizer.

Run by the engine's own Python, which has torch and transformers:

    python make_model.py TOKENIZER_DIR OUT_DIR [--adapter NAME]... [--vocabulary N] [--pictures] [--ranks FILE PATTERN]

Each adapter is a LoRA of random weights in OUT_DIR/adapters/NAME. `--vocabulary` is for another tokenizer than that of
TOKENIZER_DIR, which is then not copied. With `--pictures` it is an Idefics3, which looks at images: of those that the
engine can run without torchvision it is the one whose images take different numbers of tokens. With `--ranks` the
tokenizer is the one that transformers makes of a file of ranks, as tiktoken has them, and a pattern that cuts text.

Takes 5 to 15 s (nearly all of it imports) and writes about 1 MB, 20 MB with a large vocabulary. The weights come from a
fixed seed, so every run makes the same model; its text is nonsense, which is all that a test about prefixes needs.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

SEED = 20_260_801
RANK = 8
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
CHAT_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = (
    "<fake_token_around_image>",
    "<image>",
    "<end_of_utterance>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)
"""The tokens of an Idefics3 around and in the place of an image."""


def make(tokenizer: Path, out: Path, vocabulary: int | None, pictures: bool) -> None:
    """Write the model's folder: `config.json` is the tokenizer folder's, the weights are drawn from `SEED`."""
    import torch
    from transformers import AutoConfig, GenerationConfig, Idefics3Config, Idefics3ForConditionalGeneration
    from transformers import LlamaForCausalLM as Llama

    config = AutoConfig.from_pretrained(tokenizer)
    if vocabulary is not None:
        config.vocab_size = vocabulary
    elif pictures:
        config.vocab_size += 64  # room for MARKS
    torch.manual_seed(SEED)
    if pictures:
        eye = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        whole = Idefics3Config(
            vision_config={**eye, "image_size": 56, "patch_size": 14},
            text_config=config.to_dict(),
            image_token_id=_first_free_id(tokenizer) + MARKS.index("<image>"),
            scale_factor=2,
            pad_token_id=0,
            tie_word_embeddings=True,
        )
        model = Idefics3ForConditionalGeneration(whole).to(torch.bfloat16)
    else:
        model = Llama(config).to(torch.bfloat16)
    # No eos in the generation config: an answer is then as long as `max_tokens` says, which tests count on.
    model.generation_config = GenerationConfig(do_sample=False)
    model.save_pretrained(out)
    if vocabulary is None:
        for name in TOKENIZER_FILES:
            shutil.copyfile(tokenizer / name, out / name)
    if pictures:
        _add_picture_files(tokenizer, out)


def _first_free_id(tokenizer: Path) -> int:
    return int(json.loads((tokenizer / "config.json").read_text(encoding="utf-8"))["vocab_size"])


def _add_picture_files(tokenizer: Path, out: Path) -> None:
    """Add the tokens that stand for images, and the files of what cuts images into tiles of 4 tokens each."""
    data = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    first = _first_free_id(tokenizer)
    data["added_tokens"] += [{"id": first + n, "content": mark, **flags} for n, mark in enumerate(MARKS)]
    (out / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    eye = {
        "image_processor_type": "Idefics3ImageProcessor",
        "processor_class": "Idefics3Processor",
        "do_convert_rgb": True,
        "do_image_splitting": True,
        "do_normalize": True,
        "do_pad": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "max_image_size": {"longest_edge": 56},
        "size": {"longest_edge": 224},
        "resample": 1,
        "rescale_factor": 1 / 255,
    }
    (out / "preprocessor_config.json").write_text(json.dumps(eye), encoding="utf-8")
    processor = {"processor_class": "Idefics3Processor", "image_seq_len": 4}
    (out / "processor_config.json").write_text(json.dumps(processor), encoding="utf-8")


def make_tokenizer(ranks: Path, pattern: str, out: Path) -> None:
    """Write the `tokenizer.json` that transformers makes of ranks; text is normalised to NFC, as Qwen's code does."""
    from tokenizers.normalizers import NFC
    from transformers.convert_slow_tokenizer import TikTokenConverter

    tokenizer = TikTokenConverter(str(ranks), pattern, extra_special_tokens=list(CHAT_TOKENS)).converted()
    tokenizer.normalizer = NFC()
    tokenizer.save(str(out / "tokenizer.json"))
    about = {"tokenizer_class": "TokenizersBackend", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (out / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")


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
    parser.add_argument("--vocabulary", type=int, metavar="N", help="rows of the embedding, for another tokenizer")
    parser.add_argument("--pictures", action="store_true", help="make a model that looks at images")
    parser.add_argument("--ranks", nargs=2, metavar=("FILE", "PATTERN"), help="make the tokenizer of ranks")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    make(arguments.tokenizer, arguments.out, arguments.vocabulary, arguments.pictures)
    if arguments.ranks is not None:
        make_tokenizer(Path(arguments.ranks[0]), arguments.ranks[1], arguments.out)
    for number, name in enumerate(arguments.adapter, start=1):
        make_adapter(arguments.out, name, number)


if __name__ == "__main__":
    main()
