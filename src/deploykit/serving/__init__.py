"""The inference server: data plane without protocol, HTTP that translates, metrics."""
