"""Budgeted trials: many short trainings side by side, to find the settings that deserve a full run.

options  the flags of tools/run_trials.py;  command  what it does with them
keys     lists of settings, checked before anything runs;  space  ranges of settings, likewise
trainer  a training command as trials see it: its settings, its budget, the run file of one trial;  yolo · detr
ledger   what is known of every trial, on disk at every moment
children one training as a child process: started, watched, ended;  runner  the loop that keeps the machine busy
listed   trials from a file;  search  trials that Optuna draws
table    CSV, ranking, what is noise;  picture  the same to look at
"""
