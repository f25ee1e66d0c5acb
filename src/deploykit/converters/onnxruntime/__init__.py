"""The ONNX Runtime target."""
