"""Checks of the machine: environment, speed and correctness of training steps."""
