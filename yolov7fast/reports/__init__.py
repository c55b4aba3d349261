"""Pages and plots: a run (`run_page`, `run_plots`), a comparison of runs (`comparison`), a ranking of trials."""
