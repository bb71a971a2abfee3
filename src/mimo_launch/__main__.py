"""Run the command line as `python -m mimo_launch`."""

from mimo_launch.cli.app import main

if __name__ == "__main__":
    main()
