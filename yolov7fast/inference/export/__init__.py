"""Trained networks as files for other runtimes: ONNX, TorchScript and OpenVINO; writing, proving and running them."""
