"""The only door to the ONNX graph library: load, save, external data, shape inference, limits."""
