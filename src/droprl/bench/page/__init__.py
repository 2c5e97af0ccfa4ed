"""The page of a suite: what it says (`contents`), how that is gathered (`build`, `runs`), how it is drawn."""
