"""The public functions, one file a command: they put the parts together."""
