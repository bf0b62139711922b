"""Charts of tables that pipelines write."""
