"""The version of droprl. It is written here and nowhere else."""

__version__ = "0.1.0"
