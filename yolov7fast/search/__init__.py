"""Trials: many short trainings, to find the settings that deserve a full run. Evolution of hyper-parameters.

options, trials_file           flags of tools/run_trials.py; lists and ranges of settings
runner, database, results      the trials of a machine; Optuna's study; what is written and printed
study, evolve                  configurations x seeds with a report; train.py --evolve

The training command of a trial is in `search.trial_training`, the ranking of trials in `reports.trial_ranking`.
"""
