"""The parts of `yolov7fast compare`: runs (reading), figures (derived numbers), sections, plots, render."""
