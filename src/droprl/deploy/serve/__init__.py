"""A policy as an HTTP service: `engine` acts, `batching` groups requests, `app` answers them, `live` is the page."""
