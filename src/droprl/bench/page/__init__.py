"""The page of a suite: what it says (`contents`), how it is measured (`build`, `runs`), how it is drawn."""
