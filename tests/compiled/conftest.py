"""Tests of kernels as compiled. Triton compiles nothing in a process whose kernels are interpreted, so they run in
processes of their own, with BACKPASS_PTX=1: ``tests/ptx/test_kernels.py`` starts one, ``make test-kernels`` others."""

import os

collect_ignore_glob = [] if os.environ.get("BACKPASS_PTX") == "1" else ["test_*.py"]
