"""ONNX graphs of classifiers: traced by torch, weights in 8 bits on request, ending in calibrated probabilities."""

from __future__ import annotations

import copy
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distilcal.calibrate import Calibrator, Dirichlet, Matrix, Temperature, Vector
from distilcal.errors import InputError, MissingDependencyError
from distilcal.inference.onnx import LOGITS, PROBABILITIES
from distilcal.models.classifier import Classifier
from distilcal.models.inputs import FrozenInputs, ImageInputs, TokenInputs, VectorInputs
from distilcal.models.network import Output, Tensors
from distilcal.models.text import TextNetwork, first_token_only
from distilcal.predictions import FloatArray

UNCALIBRATED = "uncalibrated_probabilities"
LARGEST_FILE = 2**31 - 2**24  # bytes: protocol buffers end at 2 GiB
MATRIX_OPERATORS = ("MatMul", "Gather")  # Gather: embeddings; Gemm is turned into MatMul
IMAGE_OPERATORS = ("Conv", "Gemm", "MatMul", "Add")


class LogitsOfTensors(nn.Module):
    """A classifier as a function of tensors in a fixed order, from what the graph reads to logits (N, K).

    Parameters
    ----------
    classifier : Classifier
        Is copied, so that tracing leaves it as it is.
    names : sequence of str
        The names of the tensors, in order.
    """

    mean: Tensor  # of each channel, for images
    std: Tensor

    def __init__(self, classifier: Classifier, names: tuple[str, ...]):
        super().__init__()
        self.names = names
        self.network = copy.deepcopy(classifier.network).cpu().eval()
        if isinstance(self.network, TextNetwork):
            self.network.output._forward_pre_hooks.clear()  # what keeps features would be traced too
            _use_plain_attention(self.network.model)
        inputs = classifier.inputs
        self.encoder = copy.deepcopy(inputs.encoder).cpu().eval() if isinstance(inputs, FrozenInputs) else None
        if self.encoder is not None:
            _use_plain_attention(self.encoder.model)
        self.apart = is_apart(classifier)
        self.multiple_choice = classifier.multiple_choice
        if isinstance(inputs, ImageInputs):
            self.register_buffer("mean", torch.tensor(inputs.mean).view(1, 3, 1, 1))
            self.register_buffer("std", torch.tensor(inputs.std).view(1, 3, 1, 1))

    def forward(self, *values: Tensor) -> Tensor:
        """Return logits (N, K) of tensors in the order of ``names``."""
        tensors = dict(zip(self.names, values, strict=True))
        if isinstance(self.network, TextNetwork):
            with first_token_only(self.network.model):
                logits: Tensor = self.network.model(**tensors).logits
            return logits
        if self.encoder is not None:
            tensors = {"vectors": self._frozen_features(tensors)}
        elif "pixels" in tensors:
            images = tensors["pixels"].permute(0, 3, 1, 2).float() / 255
            tensors = {"pixels": (images - self.mean) / self.std}
        output: Output = self.network(tensors)
        return output.logits

    def _frozen_features(self, tensors: Tensors) -> Tensor:
        assert self.encoder is not None
        features: Tensor = self.encoder(tensors).features
        if not self.apart:
            return features
        first, second = features[:, :1], features[:, 1:]
        first = first.expand_as(second)
        combined = torch.cat([first, second, (first - second).abs(), first * second], dim=-1)
        return combined if self.multiple_choice else combined.squeeze(1)


def _use_plain_attention(model: Any) -> None:
    """Trace attention as matrix products and a softmax: a tenth faster in onnxruntime than torch's fused one taken apart."""
    if model.config._attn_implementation != "eager":
        model.set_attn_implementation("eager")


def is_apart(classifier: Classifier) -> bool:
    """Return whether a classifier encodes the texts of a pair, or a prompt and its choices, each alone.

    Parameters
    ----------
    classifier : Classifier
        The classifier; one that was trained on single texts has no pairs, whatever its settings say.

    Returns
    -------
    bool
    """
    inputs = classifier.inputs
    if not isinstance(inputs, FrozenInputs) or not inputs.apart:
        return False
    first = next(module for module in classifier.network.modules() if isinstance(module, nn.Linear))
    return first.in_features == 4 * int(inputs.encoder.model.config.hidden_size)


def trace_logits(classifier: Classifier, *, image_size: tuple[int, int] = (32, 32)) -> Any:
    """Return the ONNX graph of a classifier, from the tensors of examples to ``logits`` (N, K).

    Parameters
    ----------
    classifier : Classifier
        The trained classifier.
    image_size : tuple of int, default (32, 32)
        Height and width of the images that it reads; other kinds of input have no fixed size.

    Returns
    -------
    onnx.ModelProto
        Batch size and length of texts are dynamic.

    Raises
    ------
    InputError
        If the model is too large for one file, or cannot be traced.
    MissingDependencyError
        If onnx or onnxscript is not installed.
    """
    check_packages("onnx", "onnxscript")
    if 4 * classifier.parameters > LARGEST_FILE:
        raise InputError(f"{classifier.parameters:,} parameters do not fit into one .onnx", remedy="distil a smaller student")
    tensors = _example_tensors(classifier, image_size)
    axes = tuple(_dynamic_axes(name, value) for name, value in tensors.items())
    with quiet_export(), torch.no_grad():
        try:
            program = torch.onnx.export(
                LogitsOfTensors(classifier, tuple(tensors)),
                tuple(tensors.values()),
                dynamo=True,
                input_names=list(tensors),
                output_names=[LOGITS],
                dynamic_shapes={"values": axes},
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"torch cannot export this network: {reason}", remedy="ship it with save_pretrained") from None
    assert program is not None
    return _without_traces(program.model_proto)


def _without_traces(model: Any) -> Any:
    """Drop the stack traces that the tracer leaves at every node: they are larger than small networks and name local files."""
    for part in (*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output, model.graph):
        del part.metadata_props[:]
        part.doc_string = ""
    return model


def _example_tensors(classifier: Classifier, image_size: tuple[int, int]) -> dict[str, Tensor]:
    inputs = classifier.inputs
    if isinstance(inputs, ImageInputs):
        return {"pixels": torch.zeros(2, *image_size, 3, dtype=torch.uint8)}
    if isinstance(inputs, VectorInputs):
        return {"vectors": torch.zeros(2, inputs.width)}
    tokens = inputs.token_inputs if isinstance(inputs, FrozenInputs) else inputs
    assert isinstance(tokens, TokenInputs)
    shape: tuple[int, ...] = (2, min(7, tokens.max_length))
    if classifier.multiple_choice:
        shape = (2, len(classifier.classes) + is_apart(classifier), shape[1])
    elif is_apart(classifier):
        shape = (2, 2, shape[1])
    names = ["input_ids", "attention_mask"]
    if "token_type_ids" in tokens.tokenizer.model_input_names:
        names.append("token_type_ids")
    values = {"input_ids": 3, "attention_mask": 1, "token_type_ids": 0}
    return {name: torch.full(shape, values[name], dtype=torch.int64) for name in names}


def _dynamic_axes(name: str, value: Tensor) -> dict[int, str]:
    if name in ("pixels", "vectors"):
        return {0: "batch"}
    return {0: "batch", value.dim() - 1: "length"}


# ---- calibration -------------------------------------------------------------------------------------------------------


def in_graph(calibrator: Calibrator | None) -> bool:
    """Return whether a calibrator can be part of a graph.

    Parameters
    ----------
    calibrator : Calibrator, optional
        Temperature, vector, matrix and Dirichlet calibration can; maps of single probabilities cannot.

    Returns
    -------
    bool
    """
    return calibrator is None or isinstance(calibrator, (Temperature, Vector, Matrix, Dirichlet))


def affine_map(calibrator: Calibrator, classes: tuple[str, ...]) -> tuple[FloatArray, FloatArray]:
    """Return the matrix A (K, K) and the vector b (K,) of a calibrator ``softmax(A · z + b)``.

    Parameters
    ----------
    calibrator : Temperature, Vector, Matrix or Dirichlet
        The calibrator; z are logits, for Dirichlet calibration log-probabilities.
    classes : tuple of str
        The order of the classes in A and b; the calibrator's own order may be another.

    Returns
    -------
    A : array, shape (K, K)
    b : array, shape (K,)

    Examples
    --------
    >>> affine_map(Temperature(value=2.0, classes=("no", "yes"), fit=None), ("yes", "no"))[0].tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    if isinstance(calibrator, Temperature):
        return np.eye(len(classes)) / calibrator.value, np.zeros(len(classes))
    assert isinstance(calibrator, (Vector, Matrix, Dirichlet))
    weight = np.diag(calibrator.weight) if isinstance(calibrator, Vector) else calibrator.weight
    order = [calibrator.classes.index(name) for name in classes]
    return weight[np.ix_(order, order)], calibrator.bias[order]


def add_calibration(model: Any, calibrator: Calibrator | None, classes: tuple[str, ...]) -> Any:
    """Return a graph that ends in calibrated probabilities.

    Parameters
    ----------
    model : onnx.ModelProto
        A graph whose output is ``logits``, as `trace_logits` returns it; stays as it is.
    calibrator : Calibrator, optional
        What is applied to the logits.
    classes : tuple of str
        The classes in the order of the logits.

    Returns
    -------
    onnx.ModelProto
        Its output is ``probabilities`` (N, K). A calibrator that cannot be part of the graph leaves ``logits`` as first
        output and ``uncalibrated_probabilities`` as second.
    """
    from onnx import TensorProto, helper, numpy_helper

    calibrated = copy.deepcopy(model)
    graph = calibrated.graph
    source = LOGITS
    if isinstance(calibrator, Temperature):
        graph.initializer.append(numpy_helper.from_array(np.array(calibrator.value, np.float32), "calibration_temperature"))
        graph.node.append(helper.make_node("Div", [LOGITS, "calibration_temperature"], ["calibrated_logits"]))
        source = "calibrated_logits"
    elif calibrator is not None and in_graph(calibrator):
        weight, bias = affine_map(calibrator, classes)
        graph.initializer.append(numpy_helper.from_array(weight.T.astype(np.float32), "calibration_weight"))
        graph.initializer.append(numpy_helper.from_array(bias.astype(np.float32), "calibration_bias"))
        if isinstance(calibrator, Dirichlet):
            graph.node.append(helper.make_node("LogSoftmax", [LOGITS], ["log_probabilities"], axis=-1))
            source = "log_probabilities"
        graph.node.append(helper.make_node("MatMul", [source, "calibration_weight"], ["scaled_logits"]))
        graph.node.append(helper.make_node("Add", ["scaled_logits", "calibration_bias"], ["calibrated_logits"]))
        source = "calibrated_logits"
    output = PROBABILITIES if in_graph(calibrator) else UNCALIBRATED
    graph.node.append(helper.make_node("Softmax", [source], [output], axis=-1))
    if in_graph(calibrator):
        del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", len(classes)]))
    return calibrated


# ---- 8 bits ------------------------------------------------------------------------------------------------------------


def quantise(model: Any, pixels: NDArray[np.uint8] | None = None) -> Any:
    """Return a graph in 8 bits.

    Weights of matrix products and embeddings are stored in 8 bits, and activations are quantised as they come. Convolutions
    need ranges of activations that are fixed before: onnxruntime's ``ConvInteger``, which does without, is fifteen times
    slower than the float one. So images are shown to the network, and the ranges are those seen.

    Parameters
    ----------
    model : onnx.ModelProto
        A float graph; stays as it is.
    pixels : array of uint8, shape (N, H, W, 3), optional
        Images for a network that reads images.

    Returns
    -------
    onnx.ModelProto
    """
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    stripped = copy.deepcopy(model)
    del stripped.graph.value_info[:]  # shapes of the float graph contradict the quantised one
    settings: dict[str, Any] = {
        "per_channel": True,
        "reduce_range": True,  # without it products of 8 bits overflow on processors without VNNI
        "weight_type": QuantType.QInt8,
    }
    with tempfile.TemporaryDirectory() as folder, quiet_export():
        path = Path(folder) / "int8.onnx"
        if pixels is None:
            quantize_dynamic(stripped, path, op_types_to_quantize=list(MATRIX_OPERATORS), **settings)
        else:
            settings["activation_type"] = QuantType.QUInt8
            settings["op_types_to_quantize"] = list(IMAGE_OPERATORS)
            quantize_static(stripped, path, PixelReader(pixels), quant_format=QuantFormat.QDQ, **settings)
        return onnx.load(path)


class PixelReader:
    """Gives images to onnxruntime's calibration of ranges, a batch at a time.

    Parameters
    ----------
    pixels : array of uint8, shape (N, H, W, 3)
        The images.
    """

    def __init__(self, pixels: NDArray[np.uint8]):
        self._batches = iter(np.array_split(pixels, max(1, len(pixels) // 32)))

    def get_next(self) -> dict[str, NDArray[np.uint8]] | None:
        """Return the next batch by the name of the input, None after the last."""
        batch = next(self._batches, None)
        return None if batch is None else {"pixels": batch}


def check_packages(*names: str) -> None:
    """Raise an error that says what to install unless the packages are installed.

    Parameters
    ----------
    *names : str
        Names of packages of the extra "export".

    Raises
    ------
    MissingDependencyError
        For the first that is missing.
    """
    from importlib.util import find_spec

    for name in names:
        if find_spec(name) is None:
            raise MissingDependencyError(f"exporting to ONNX needs {name}", remedy="pip install 'distilcal[export]'")


@contextmanager
def quiet_export() -> Iterator[None]:
    """Show no advice of torch.onnx and of the quantiser while the context lasts: it is about their own insides."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "root")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
