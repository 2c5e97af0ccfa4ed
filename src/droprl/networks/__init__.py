"""Networks by role: perceptrons, actors, critics, and DROP's embeddings."""
