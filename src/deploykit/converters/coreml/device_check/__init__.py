"""The check that `convert` puts beside a package: saved inputs and outputs, and what runs them on an Apple system."""
