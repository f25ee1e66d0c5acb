"""ONNX to MIL, one file an op family."""
