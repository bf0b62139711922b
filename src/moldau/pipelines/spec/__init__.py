"""Reading a pipeline from its file: YAML or Python, checked and told with the line of a mistake."""
