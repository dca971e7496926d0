"""`python -m wgpu_backend` is the command `wgpu-backend`."""

import sys

from wgpu_backend.cli import main

sys.exit(main())
