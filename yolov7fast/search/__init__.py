"""Searches for settings: many short trainings on Optuna (`runner`), studies, evolution of hyper-parameters."""
