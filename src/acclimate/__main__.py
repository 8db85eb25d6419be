"""``python -m acclimate``."""

from acclimate.cli.main import main

if __name__ == "__main__":  # tools that inspect all modules import this one
    main()
