"""Budgeted trials: many short trainings side by side, to find the settings that deserve a full run.

options   the flags of tools/run_trials.py;  command  what it does with them
settings  lists of settings and ranges to draw from, checked before anything runs
trainer   a training command as trials see it, by family: its settings, budget, the run file of one trial
storage   the database of Optuna's study and its draws;  halving  who pauses at a rung and who trains on
study     the trials in the study, as one machine works on them
run       one training: its process, its record, what it leaves;  runner  the loop that keeps the machine busy
report    CSV, ranking, what is noise;  plot  the same to look at
evolve    upstream's --evolve
"""
