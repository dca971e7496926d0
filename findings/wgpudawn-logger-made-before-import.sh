#!/bin/sh
# wgpudawn and wgpu: a logger of their name, made before the import, makes the import fail
#
# Versions: wgpudawn 0.32.0.4, wgpu 0.32.0, Python 3.11; no adapter is needed.
# `logging.getLogger(NAME)` before NAME is imported is how programs set levels and filters: a logger
# may be made at any time. Both packages set a logger class while they are imported and assert that
# their logger has it, so the import raises AssertionError without a text. Whoever filters the logs
# of a package that is perhaps never imported meets this.
. "$(dirname "$0")/common.sh"
install wgpu==0.32.0 wgpudawn==0.32.0.4
expect 'wgpudawn: AssertionError
wgpu: AssertionError
wgpudawn, imported first: imported' <<'END'
import subprocess
import sys

LOGGER = "import logging; logging.getLogger({0!r}); import {0}"
IMPORT = "import {0}; import logging; logging.getLogger({0!r})"


def outcome(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.stderr.strip().splitlines()[-1] if done.returncode else "imported"


print("wgpudawn:", outcome(LOGGER.format("wgpudawn")))
print("wgpu:", outcome(LOGGER.format("wgpu")))
print("wgpudawn, imported first:", outcome(IMPORT.format("wgpudawn")))
END
