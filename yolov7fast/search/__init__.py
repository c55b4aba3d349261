"""Budgeted trials: many short trainings side by side, to find the settings that deserve a full run.

options, command   the flags of tools/run_trials.py, and what it does with them
trainer, settings  a training command as trials see it, by family; lists of settings, and ranges to draw from
storage, study     the database of Optuna's study; its trials as one machine works on them;  halving  who trains on
run, runner        one training's record and figures;  what keeps the machine busy with trainings
report, plot       CSV, ranking, what is noise, and the same to look at;  evolve  upstream's --evolve
"""
