"""Predictors of all families with one interface; `predictor.load_predictor` opens weights files."""
