"""Gymnasium tasks by id, and our own versions of D4RL's mazes."""
