"""Running exported files: one small class for each runtime, all with the same call.

`open_session` chooses by the file's name. A session takes arrays as the file wants them and gives its outputs by name.
"""

import contextlib
import functools
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from yolov7fast.core.errors import UserError, is_out_of_memory, need
from yolov7fast.predictors.exported.metadata import Metadata
from yolov7fast.predictors.exported.trust import check_trusted

TENSORRT_PLUGIN = "EfficientNMS_TRT"
FOR_TENSORRT = (
    "holds TensorRT's suppression, which TensorRT alone can run: scripts/build_engine.sh makes an engine of it; for "
    "detect.py and test.py export with --nms or --grid"
)
CONFIDENCE_NODE = "Greater_is_confident"  # of a network that needs no suppression


def open_session(
    path: str | Path,
    device: str = "cpu",
    thresholds: Mapping[str, float] | None = None,
    extra: Sequence[str] = (),
    trust_torchscript: bool = False,
) -> "Session":
    """A session for an exported file.

    device: cpu or cuda, as far as the runtime has it. thresholds: other values for `conf_thres` and `iou_thres` of a
    file with suppression inside. extra: names of values inside its graph that are given as outputs too.
    trust_torchscript: run a TorchScript file that was not exported on this machine.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} does not exist; export.py writes such files: python export.py --weights best.pt")
    if path.suffix == ".onnx":
        return OnnxSession.open(path, device, thresholds or {}, extra)
    if path.suffix == ".xml":
        return OpenVinoSession.open(path, thresholds or {}, extra)
    return TorchScriptSession.open(path, device, trust_torchscript)


class Session(ABC):
    """A loaded file: `metadata`, and `run`."""

    metadata: Metadata
    runtime: str  # name and version, for reports

    @abstractmethod
    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Arrays by input name -> arrays by output name."""


@contextlib.contextmanager
def damaged(path: str | Path, runtime: str, step: str = "loaded"):
    """Whatever a runtime says of a file that cannot be loaded or run becomes one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{path} cannot be {step} by {runtime}: {reason}; export the .pt file again") from None


class OnnxSession(Session):
    """onnxruntime."""

    def __init__(self, content: bytes | str, origin: str | Path, device: str = "cpu"):
        runtime = need("onnxruntime", "an .onnx file")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        # its threads rest between runs: spinning, they would take the cores of whatever reads, writes or runs next
        options.add_session_config_entry("session.force_spinning_stop", "1")
        providers = ["CPUExecutionProvider"]
        if device != "cpu" and "CUDAExecutionProvider" in runtime.get_available_providers():
            providers.insert(0, "CUDAExecutionProvider")
        self.runtime = f"onnxruntime {runtime.__version__}"
        with damaged(origin, "onnxruntime"):
            try:
                self.session = runtime.InferenceSession(content, options, providers)
            except Exception as error:
                if TENSORRT_PLUGIN in str(error):
                    raise UserError(f"{origin} {FOR_TENSORRT}") from None
                raise
        self.metadata = Metadata.of(self.session.get_modelmeta().custom_metadata_map, origin)
        self.outputs = [value.name for value in self.session.get_outputs()]

    @classmethod
    def open(cls, path: Path, device: str, thresholds: Mapping[str, float], extra: Sequence[str]) -> "OnnxSession":
        if not thresholds and not extra:
            return cls(str(path), path, device)
        onnx = need("onnx", "another threshold for a file with suppression inside")
        with damaged(path, "onnx"):
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
    """The one Core of this process, kept until its end.

    Its CPU plugin installs a stack for signal handlers and puts the one before it back when the Core goes. Two Cores
    that go in the order they came leave a stack that is freed, and the next signal (Ctrl-C, a child's end) crashes.
    """
    return need("openvino", "an .xml file").Core()


class OpenVinoSession(Session):
    """OpenVINO on the CPU, held to float32: some processors would compute in bfloat16 otherwise."""

    def __init__(self, model: Any, origin: str | Path):
        openvino = need("openvino", "an .xml file")
        self.runtime = f"OpenVINO {openvino.__version__.split('-')[0]}"
        settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
        with damaged(origin, "OpenVINO"):
            text = model.get_rt_info("model_info").value
            self.metadata = Metadata.of({key: str(value) for key, value in text.items()}, origin)
            self.compiled = openvino_core().compile_model(model, "CPU", settings)
        self.outputs = [sorted(value.get_names(), key=len)[0] for value in self.compiled.outputs]

    @classmethod
    def open(cls, path: Path, thresholds: Mapping[str, float], extra: Sequence[str]) -> "OpenVinoSession":
        openvino = need("openvino", "an .xml file")
        with damaged(path, "OpenVINO"):
            model = openvino_core().read_model(path)
            for node in model.get_ops():
                for name, port in threshold_ports(node).items():
                    if name in thresholds:
                        old = node.input(port).get_source_output()
                        value = np.full(list(old.get_shape()), thresholds[name], np.float32)
                        node.input(port).replace_source_output(openvino.opset13.constant(value).output(0))
            for name in extra:
                model.add_outputs(name)
            model.validate_nodes_and_infer_types()
        return cls(model, path)

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = self.compiled(dict(inputs))
        return {name: np.array(found[i]) for i, name in enumerate(self.outputs)}


def threshold_ports(node: Any) -> dict[str, int]:
    """At which inputs of a node of ours the thresholds enter."""
    if node.get_type_name() == "NonMaxSuppression":
        return {"iou_thres": 3, "conf_thres": 4}
    return {"conf_thres": 1} if node.get_friendly_name() == CONFIDENCE_NODE else {}


class TorchScriptSession(Session):
    """PyTorch without this project's code."""

    def __init__(self, module: Any, metadata: Metadata, device: torch.device):
        self.module, self.metadata, self.device = module, metadata, device
        self.runtime = f"TorchScript {torch.__version__}"

    @classmethod
    def open(cls, path: Path, device: str, trusted: bool) -> "TorchScriptSession":
        """trusted: run the file even if it was not exported on this machine (`runtimes.trust`)."""
        extra = {"metadata.json": ""}
        with damaged(path, "TorchScript"):
            content = path.read_bytes()
            check_trusted(content, path, trusted)
            module = torch.jit.load(io.BytesIO(content), map_location=device, _extra_files=extra)
        return cls(module.eval(), Metadata.of_json(extra["metadata.json"], path), torch.device(device))

    @torch.no_grad()
    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = self.module(*(torch.from_numpy(value).to(self.device) for value in inputs.values()))
        found = (found,) if isinstance(found, torch.Tensor) else found
        return {name: value.cpu().numpy() for name, value in zip(self.metadata.outputs, found)}
