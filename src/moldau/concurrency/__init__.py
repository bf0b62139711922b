"""Asyncio primitives that asyncio itself lacks. Every package uses these instead of its own versions."""
