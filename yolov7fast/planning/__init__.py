"""What a training needs before it is started: memory, disk, feeding, links, hours."""
