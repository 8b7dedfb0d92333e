"""A student in an .onnx that needs no torch to be written: a word tokenizer and one weight per word and class."""

import hashlib

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

from distilcal.inference.onnx_description import METADATA, OnnxDescription, TokenizerFile, encode_dev_rows
from distilcal.inference.onnx_digest import append_digest

WORDS = {"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3, "very": 4}
WEIGHTS = np.array([[0, 0], [0, 0.1], [-1, 1], [1, -1], [0.1, 0.1]], dtype=np.float32)  # of neg and pos


def write_word_student(path, dev=None, *, swapped=False, **description):
    """Write the student and its tokenizer; return its path. If swapped, good words are bad."""
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    file = path.with_name(f"{path.stem}.tokenizer.json")
    tokenizer.save(str(file))
    facts = TokenizerFile(file.name, hashlib.sha256(file.read_bytes()).hexdigest(), pad_id=0, token_types=False)
    description = OnnxDescription(
        ("neg", "pos"),
        "texts",
        max_length=64,
        tokenizer=facts,
        dev=None if dev is None else encode_dev_rows(dev),
        **{"has_digest": True, **description},
    )
    nodes = [
        helper.make_node("Gather", ["weights", "input_ids"], ["of_words"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["wide_mask"]),
        helper.make_node("Mul", ["of_words", "wide_mask"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "second"], ["logits"], keepdims=0),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "words",
        [helper.make_tensor_value_info(n, TensorProto.INT64, ["n", "l"]) for n in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 2])],
        [
            numpy_helper.from_array(WEIGHTS[:, ::-1].copy() if swapped else WEIGHTS, "weights"),
            numpy_helper.from_array(np.array([2]), "last"),
            numpy_helper.from_array(np.array([1]), "second"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(model, {METADATA: description.to_json()})
    path.write_bytes(append_digest(model.SerializeToString()))
    return path


def word_probs(text):
    """The probability of pos, computed here."""
    logits = sum((WEIGHTS[WORDS.get(word, 1)] for word in text.split()), np.zeros(2))
    return float(1 / (1 + np.exp(logits[0] - logits[1])))
