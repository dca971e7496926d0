"""A node of `benchmarks.cluster.faults`: it listens until its input ends."""

from __future__ import annotations

import sys

from wgpu_backend.server.cluster.link import Listener


def main() -> int:
    """Listen at the address in the command, with the token in the first line of the input."""
    host, port = sys.argv[1:]
    node = Listener(sys.stdin.readline().strip(), host, int(port), spare=True)
    print("listening", flush=True)
    sys.stdin.read()
    node.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
