"""``python -m acclimate``."""

from acclimate.cli import main

if __name__ == "__main__":  # tools that inspect all modules import this one
    main()
