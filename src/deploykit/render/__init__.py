"""Renderings of a Report, one file a format."""
