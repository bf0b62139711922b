"""A node: broker and controller in one process."""

from moldau.node.node import Node

__all__ = ["Node"]
