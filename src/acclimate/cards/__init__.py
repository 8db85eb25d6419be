"""Model cards (the ``README.md`` of every exported model, with Hub metadata), and uploading models to the Hub."""
