"""`python -m droprl` is `drop`."""

from droprl.cli import main

if __name__ == "__main__":
    main()
