"""Tests of kernels as compiled. Triton compiles nothing in a process whose kernels are interpreted, so these tests run
in their own processes, with BACKPASS_PTX=1, which ``tests/ptx/test_kernels.py`` and ``make test-kernels`` start."""

import os

collect_ignore_glob = [] if os.environ.get("BACKPASS_PTX") == "1" else ["test_*.py"]
