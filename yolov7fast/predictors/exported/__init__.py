"""Exported files as they are used: what they say of themselves, the programs that run them, predictors made of them."""
