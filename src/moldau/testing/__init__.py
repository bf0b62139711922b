"""For tests: a broker in the test's own process, ready at once (`Broker`), and a pytest fixture that gives one."""

from moldau.testing.broker import Broker

__all__ = ["Broker"]
