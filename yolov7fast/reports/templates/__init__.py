"""Templates of self-contained HTML pages: one base, one style sheet, one script."""
