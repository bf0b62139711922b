"""The ways out of an event loop into the real world, all closed."""

import asyncio
from typing import Any, NoReturn


class DeterminismError(NotImplementedError):
    """Code under simulation reached for the real world."""


def _forbid(name: str) -> NoReturn:
    raise DeterminismError(f"loop.{name} would leave the simulation: nothing in a node may use it")


class DeterministicLoop(asyncio.AbstractEventLoop):
    def add_reader(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        _forbid("add_reader")

    def add_signal_handler(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        _forbid("add_signal_handler")

    def add_writer(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        _forbid("add_writer")

    def connect_accepted_socket(self, *args: Any, **options: Any) -> Any:
        _forbid("connect_accepted_socket")

    def connect_read_pipe(self, *args: Any, **options: Any) -> Any:
        _forbid("connect_read_pipe")

    def connect_write_pipe(self, *args: Any, **options: Any) -> Any:
        _forbid("connect_write_pipe")

    def create_datagram_endpoint(self, *args: Any, **options: Any) -> Any:
        _forbid("create_datagram_endpoint")

    def create_unix_connection(self, *args: Any, **options: Any) -> Any:
        _forbid("create_unix_connection")

    def create_unix_server(self, *args: Any, **options: Any) -> Any:
        _forbid("create_unix_server")

    def getaddrinfo(self, *args: Any, **options: Any) -> Any:
        _forbid("getaddrinfo")

    def getnameinfo(self, *args: Any, **options: Any) -> Any:
        _forbid("getnameinfo")

    def remove_reader(self, *args: Any, **options: Any) -> Any:
        _forbid("remove_reader")

    def remove_signal_handler(self, *args: Any, **options: Any) -> Any:
        _forbid("remove_signal_handler")

    def remove_writer(self, *args: Any, **options: Any) -> Any:
        _forbid("remove_writer")

    def run_in_executor(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        _forbid("run_in_executor")

    def sendfile(self, *args: Any, **options: Any) -> Any:
        _forbid("sendfile")

    def set_default_executor(self, *args: Any, **options: Any) -> Any:
        _forbid("set_default_executor")

    def set_task_factory(self, *args: Any, **options: Any) -> Any:
        _forbid("set_task_factory")

    def sock_accept(self, *args: Any, **options: Any) -> Any:
        _forbid("sock_accept")

    def sock_connect(self, *args: Any, **options: Any) -> Any:
        _forbid("sock_connect")

    def sock_recv(self, *args: Any, **options: Any) -> Any:
        _forbid("sock_recv")

    def sock_recv_into(self, *args: Any, **options: Any) -> Any:
        _forbid("sock_recv_into")

    def sock_recvfrom(self, *args: Any, **options: Any) -> Any:
        _forbid("sock_recvfrom")

    def sock_recvfrom_into(self, *args: Any, **options: Any) -> Any:
        _forbid("sock_recvfrom_into")

    def sock_sendall(self, *args: Any, **options: Any) -> Any:
        _forbid("sock_sendall")

    def sock_sendfile(self, *args: Any, **options: Any) -> Any:
        _forbid("sock_sendfile")

    def sock_sendto(self, *args: Any, **options: Any) -> Any:
        _forbid("sock_sendto")

    def start_tls(self, *args: Any, **options: Any) -> Any:
        _forbid("start_tls")

    def subprocess_exec(self, *args: Any, **options: Any) -> Any:
        _forbid("subprocess_exec")

    def subprocess_shell(self, *args: Any, **options: Any) -> Any:
        _forbid("subprocess_shell")
