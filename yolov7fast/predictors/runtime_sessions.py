"""Runtimes of exported files: onnxruntime, OpenVINO and TorchScript behind one interface.

`open_session` chooses the runtime by the file name. TorchScript is code, and what it does on loading cannot be
restricted: each TorchScript file that export.py writes is recorded by its SHA-256 as an empty file of that name in the
user's cache folder, and all others are refused unless the user trusts them.
"""

import contextlib
import functools
import hashlib
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from yolov7fast.core.errors import UserError, is_out_of_memory, need
from yolov7fast.core.files.atomic import as_user_error
from yolov7fast.data.formats.dataset_files import CACHE_VARIABLE, cache_folder, cache_root
from yolov7fast.predictors.export_metadata import ExportMetadata

TENSORRT_PLUGIN = "EfficientNMS_TRT"
CONFIDENCE_NODE = "Greater_is_confident"  # applies the confidence threshold in networks without NMS
TRUST_FOLDER = "trusted_exports"  # in the cache folder
TRUST_VARIABLE = "YOLOV7FAST_TRUST_TORCHSCRIPT"


class RuntimeSession(ABC):
    """An exported file loaded by a runtime."""

    metadata: ExportMetadata
    runtime: str  # name and version, for reports

    @abstractmethod
    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Arrays by input name -> arrays by output name."""


def open_session(
    path: str | Path,
    device: str = "cpu",
    thresholds: Mapping[str, float] | None = None,
    extra: Sequence[str] = (),
    trust_torchscript: bool = False,
) -> RuntimeSession:
    """Load an exported file.

    Args:
        path: the file; its suffix selects the runtime.
        device: cpu or cuda, used if the runtime supports it.
        thresholds: new values of `conf_thres` and `iou_thres` for a file that includes NMS.
        extra: names of values inside the graph that become additional outputs.
        trust_torchscript: run a TorchScript file that was not exported on this machine.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} does not exist; export.py writes such files: python export.py --weights best.pt")
    if path.suffix == ".onnx":
        return OnnxSession.open(path, device, thresholds or {}, extra)
    if path.suffix == ".xml":
        return OpenVinoSession(path, thresholds or {}, extra)
    return TorchScriptSession(path, device, trust_torchscript)


@contextlib.contextmanager
def file_errors(path: str | Path, runtime: str, step: str = "loaded"):
    """Turn errors of a runtime on a damaged file into one-line UserErrors."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{path} cannot be {step} by {runtime}: {reason}; export the .pt file again") from None


class OnnxSession(RuntimeSession):
    """An ONNX file in onnxruntime."""

    def __init__(self, content: bytes | str, origin: str | Path, device: str = "cpu"):
        runtime = need("onnxruntime", "an .onnx file")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        # do not spin between runs, which would take cores from reading and writing images
        options.add_session_config_entry("session.force_spinning_stop", "1")
        providers = ["CPUExecutionProvider"]
        if device != "cpu" and "CUDAExecutionProvider" in runtime.get_available_providers():
            providers.insert(0, "CUDAExecutionProvider")
        self.runtime = f"onnxruntime {runtime.__version__}"
        with file_errors(origin, "onnxruntime"):
            try:
                self.session = runtime.InferenceSession(content, options, providers)
            except Exception as error:
                if TENSORRT_PLUGIN in str(error):
                    raise UserError(
                        f"{origin} includes TensorRT's NMS plugin, which only TensorRT can run: "
                        "scripts/build_engine.sh builds an engine from it; for detect.py and test.py export with --nms "
                        "or --grid"
                    ) from None
                raise
        self.metadata = ExportMetadata.of(self.session.get_modelmeta().custom_metadata_map, origin)
        self.outputs = [value.name for value in self.session.get_outputs()]

    @classmethod
    def open(cls, path: Path, device: str, thresholds: Mapping[str, float], extra: Sequence[str]) -> "OnnxSession":
        if not thresholds and not extra:
            return cls(str(path), path, device)
        onnx = need("onnx", "another threshold for a file that includes NMS")
        with file_errors(path, "onnx"):
            model = onnx.load(path)
        for constant in model.graph.initializer:
            if constant.name in thresholds:
                value = np.array([thresholds[constant.name]], np.float32)
                constant.CopyFrom(onnx.numpy_helper.from_array(value, constant.name))
        for name in extra:
            model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
        return cls(model.SerializeToString(), path, device)

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(self.outputs, self.session.run(self.outputs, dict(inputs))))


@functools.cache
def openvino_core() -> Any:
    """The only OpenVINO Core of this process.

    Its CPU plugin replaces the stack of signal handlers and restores the previous one when the Core is deleted. Two
    Cores deleted in the order of their creation leave a freed stack, and the next signal (Ctrl-C, SIGCHLD) crashes.
    """
    return need("openvino", "an .xml file").Core()


class OpenVinoSession(RuntimeSession):
    """An OpenVINO model on the CPU, in float32: some processors use bfloat16 by default."""

    def __init__(self, path: Path, thresholds: Mapping[str, float], extra: Sequence[str]):
        openvino = need("openvino", "an .xml file")
        self.runtime = f"OpenVINO {openvino.__version__.split('-')[0]}"
        settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
        with file_errors(path, "OpenVINO"):
            model = openvino_core().read_model(path)
            for node in model.get_ops():
                for name, port in _threshold_ports(node).items():
                    if name in thresholds:
                        old = node.input(port).get_source_output()
                        value = np.full(list(old.get_shape()), thresholds[name], np.float32)
                        node.input(port).replace_source_output(openvino.opset13.constant(value).output(0))
            for name in extra:
                model.add_outputs(name)
            model.validate_nodes_and_infer_types()
            text = model.get_rt_info("model_info").value
            self.metadata = ExportMetadata.of({key: str(value) for key, value in text.items()}, path)
            self.compiled = openvino_core().compile_model(model, "CPU", settings)
        self.outputs = [sorted(value.get_names(), key=len)[0] for value in self.compiled.outputs]

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = self.compiled(dict(inputs))
        return {name: np.array(found[i]) for i, name in enumerate(self.outputs)}


def _threshold_ports(node: Any) -> dict[str, int]:
    """Threshold name -> input port of an OpenVINO node that takes it."""
    if node.get_type_name() == "NonMaxSuppression":
        return {"iou_thres": 3, "conf_thres": 4}
    return {"conf_thres": 1} if node.get_friendly_name() == CONFIDENCE_NODE else {}


class TorchScriptSession(RuntimeSession):
    """A TorchScript file in PyTorch. trusted: run it even if it was not exported on this machine."""

    def __init__(self, path: Path, device: str, trusted: bool):
        self.runtime, self.device = f"TorchScript {torch.__version__}", torch.device(device)
        extra = {"metadata.json": ""}
        with file_errors(path, "TorchScript"):
            content = path.read_bytes()
            check_trusted(content, path, trusted)
            module = torch.jit.load(io.BytesIO(content), map_location=device, _extra_files=extra)
        self.module = module.eval()
        self.metadata = ExportMetadata.of_json(extra["metadata.json"], path)

    @torch.no_grad()
    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = self.module(*(torch.from_numpy(value).to(self.device) for value in inputs.values()))
        found = (found,) if isinstance(found, torch.Tensor) else found
        return {name: value.cpu().numpy() for name, value in zip(self.metadata.outputs, found)}


def record_export(path: Path) -> None:
    """Record a TorchScript file that export.py has written as trusted for this user on this machine."""
    record = cache_folder(TRUST_FOLDER) / hashlib.sha256(path.read_bytes()).hexdigest()
    with as_user_error(record, f"set {CACHE_VARIABLE}=FOLDER to a folder that can be written"):
        record.touch()


def check_trusted(content: bytes, origin: Path, trusted: bool) -> None:
    """Raise UserError for the content of a TorchScript file that is neither trusted by a flag nor exported here."""
    if trusted or os.environ.get(TRUST_VARIABLE) == "1":
        return
    if not (cache_root() / TRUST_FOLDER / hashlib.sha256(content).hexdigest()).is_file():
        raise UserError(
            f"{origin} was not exported on this machine, and a TorchScript file can run any code: if you trust its "
            f"source, pass --trust-torchscript or set {TRUST_VARIABLE}=1; otherwise use the .pt or .onnx file"
        )
