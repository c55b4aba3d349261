"""Hooks of a run: copies to another machine, commands after checkpoints and at its end."""
