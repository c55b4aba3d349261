"""Commands about a machine: is it fit, what does a training need, where does time go, which flags are fastest."""
