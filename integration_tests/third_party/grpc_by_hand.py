"""Calls a worker with grpcurl, for tests of other things."""

import json
import subprocess

from worker_under_test import PATIENCE_S


def call(address, method, fields, flags=()):
    """Returns grpcurl's output; raises an exception if the call fails."""
    return subprocess.run(
        ["grpcurl", "-plaintext", *flags, "-d", json.dumps(fields), address, method],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    ).stdout
