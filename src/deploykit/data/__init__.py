"""Input data sources, sampling and the preprocessing contract."""
