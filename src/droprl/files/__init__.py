"""What everything else needs to read and write files: sealed JSON, whole files, locks, settings from a dict."""
