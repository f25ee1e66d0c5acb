"""Model sources to ONNX, one file a kind of source."""
