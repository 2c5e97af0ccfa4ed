"""Gymnasium tasks by id, and the mazes that are made here."""
