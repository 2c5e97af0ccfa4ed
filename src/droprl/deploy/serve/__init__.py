"""A policy as an HTTP service: `engine` acts, `batching` gathers requests, `app` answers them, `live` is the page."""
