"""A node: broker and controller in one process, put together in boot order."""

from moldau.node.node import Node

__all__ = ["Node"]
