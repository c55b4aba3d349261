"""Trained networks as files for other runtimes: ONNX, TorchScript and OpenVINO; writing, verifying and running them."""
