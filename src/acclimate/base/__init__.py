"""Code that all other packages use: errors, files, locks, progress, devices, options and the registry of parts."""
