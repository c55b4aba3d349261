"""What a training needs of a machine, how fast its steps are, and whether the machine computes them correctly."""
