"""Code that several test modules share. No test module imports another one."""
