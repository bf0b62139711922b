"""Pipeline files in YAML or Python: parsing and validation, with line numbers in errors."""
