"""Detectors behind one interface (`base.Predictor`); `registry.load_predictor` opens weights of any family."""
