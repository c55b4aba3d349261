"""What a run does besides training: copies to another machine, commands after checkpoints and at its end."""
