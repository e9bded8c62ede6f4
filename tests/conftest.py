"""Settings shared by all tests."""

import os
import warnings

import torch
from hypothesis import HealthCheck, settings

# Small tensors on shared cores: one thread is several times faster than two.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
warnings.filterwarnings("ignore", message=".*torch.jit.*", category=DeprecationWarning)

settings.register_profile(
    "emblema", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("thorough", parent=settings.get_profile("emblema"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "emblema"))
