"""Runs a command and writes, after its own last words, what it took: `@{"cpu_s": ..., "peak_mb": ...}` on stderr."""

import json
import os
import resource
import subprocess
import sys


def main() -> int:
    """Runs it; returns its exit code."""
    before = os.times()
    code = subprocess.run(sys.argv[1:], check=False).returncode
    after = os.times()
    seconds = after.children_user - before.children_user + after.children_system - before.children_system
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"\n@{json.dumps({'cpu_s': round(seconds, 2), 'peak_mb': round(peak, 1)})}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
