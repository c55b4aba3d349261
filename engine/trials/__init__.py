"""Budgeted trials: many short trainings side by side, to find the settings that deserve a full run.

keys     what may be tried: names and values of a trainer's settings, checked before anything runs
trainer  a training command as trials see it: its keys, its budget, the run file of one trial
ledger   what is known of every trial, on disk at every moment
children one training as a child process: started, watched, ended
runner   the loop that keeps the machine busy
listed   trials from a file;  search  trials that Optuna draws
table    CSV, ranking, what is noise;  picture  the same to look at
"""
