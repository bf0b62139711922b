"""The ways out of an event loop into the real world, all closed."""

import asyncio
from typing import Any, NoReturn


class SimulationEscape(NotImplementedError):
    """Code under simulation reached for the real world."""


def _escape(name: str) -> NoReturn:
    raise SimulationEscape(f"loop.{name} would leave the simulation: nothing in a node may use it")


class EscapesForbidden(asyncio.AbstractEventLoop):
    def add_reader(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        _escape("add_reader")

    def add_signal_handler(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        _escape("add_signal_handler")

    def add_writer(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        _escape("add_writer")

    def connect_accepted_socket(self, *args: Any, **options: Any) -> Any:
        _escape("connect_accepted_socket")

    def connect_read_pipe(self, *args: Any, **options: Any) -> Any:
        _escape("connect_read_pipe")

    def connect_write_pipe(self, *args: Any, **options: Any) -> Any:
        _escape("connect_write_pipe")

    def create_datagram_endpoint(self, *args: Any, **options: Any) -> Any:
        _escape("create_datagram_endpoint")

    def create_unix_connection(self, *args: Any, **options: Any) -> Any:
        _escape("create_unix_connection")

    def create_unix_server(self, *args: Any, **options: Any) -> Any:
        _escape("create_unix_server")

    def getaddrinfo(self, *args: Any, **options: Any) -> Any:
        _escape("getaddrinfo")

    def getnameinfo(self, *args: Any, **options: Any) -> Any:
        _escape("getnameinfo")

    def remove_reader(self, *args: Any, **options: Any) -> Any:
        _escape("remove_reader")

    def remove_signal_handler(self, *args: Any, **options: Any) -> Any:
        _escape("remove_signal_handler")

    def remove_writer(self, *args: Any, **options: Any) -> Any:
        _escape("remove_writer")

    def run_in_executor(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        _escape("run_in_executor")

    def sendfile(self, *args: Any, **options: Any) -> Any:
        _escape("sendfile")

    def set_default_executor(self, *args: Any, **options: Any) -> Any:
        _escape("set_default_executor")

    def set_task_factory(self, *args: Any, **options: Any) -> Any:
        _escape("set_task_factory")

    def sock_accept(self, *args: Any, **options: Any) -> Any:
        _escape("sock_accept")

    def sock_connect(self, *args: Any, **options: Any) -> Any:
        _escape("sock_connect")

    def sock_recv(self, *args: Any, **options: Any) -> Any:
        _escape("sock_recv")

    def sock_recv_into(self, *args: Any, **options: Any) -> Any:
        _escape("sock_recv_into")

    def sock_recvfrom(self, *args: Any, **options: Any) -> Any:
        _escape("sock_recvfrom")

    def sock_recvfrom_into(self, *args: Any, **options: Any) -> Any:
        _escape("sock_recvfrom_into")

    def sock_sendall(self, *args: Any, **options: Any) -> Any:
        _escape("sock_sendall")

    def sock_sendfile(self, *args: Any, **options: Any) -> Any:
        _escape("sock_sendfile")

    def sock_sendto(self, *args: Any, **options: Any) -> Any:
        _escape("sock_sendto")

    def start_tls(self, *args: Any, **options: Any) -> Any:
        _escape("start_tls")

    def subprocess_exec(self, *args: Any, **options: Any) -> Any:
        _escape("subprocess_exec")

    def subprocess_shell(self, *args: Any, **options: Any) -> Any:
        _escape("subprocess_shell")
