"""Files below everything: sealed JSON, whole-or-absent writing, locks, settings from a dict."""
