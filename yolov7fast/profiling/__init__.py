"""Measuring a training iteration: the profiled family, the timed loop, the report, and an operator counter."""
