"""The parts of tools/compare_runs.py: runs (reading), figures (derived numbers), sections, plots, render."""
