"""A simulator of many nodes that serve one model, and its calibration with real workers."""

import os

# Calibration goes by processor time, in which each thread of a matrix product would count. NumPy
# reads these when it is imported, here and in the workers.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
