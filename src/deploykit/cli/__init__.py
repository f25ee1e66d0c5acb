"""The command line: parses, calls the public function, renders, returns the exit code."""
