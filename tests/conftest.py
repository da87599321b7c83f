"""Two test processes share two cores: BLAS threads on tiny products would only fight."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
