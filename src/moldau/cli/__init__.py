"""The command line `moldau`: one package per noun, one file per command."""
