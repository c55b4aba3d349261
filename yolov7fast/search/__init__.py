"""Trials: many short trainings, to find the settings that deserve a full run. Evolution of hyper-parameters.

options, trials_file, trial_training   flags; lists and ranges of settings; the training command of a trial
runner, database, results              the trials of a machine; Optuna's study; tables, ranking, noise of seeds
study, evolve                          configurations x seeds with a report; train.py --evolve
"""
