"""What was measured or found before a page is built: records of benchmarks, and results
of tests."""
