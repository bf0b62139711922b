"""Exclusive locks of data directories."""

import os
from pathlib import Path

import pytest

from moldau.cli.data_lock import data_lock
from moldau.errors import StorageError


def test_a_data_directory_is_created_and_locked_exclusively(tmp_path: Path) -> None:
    data_dir = str(tmp_path / "deep" / "data")
    with (
        data_lock(data_dir),
        pytest.raises(StorageError, match=rf"data is in use by process {os.getpid()}; .*--data-dir"),
        data_lock(data_dir),
    ):
        pass
    with data_lock(data_dir):
        pass


def test_a_stale_lock_file_does_not_block(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("1234567890\n")
    with data_lock(str(tmp_path)):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"


def test_an_unusable_path_is_a_storage_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with (
        pytest.raises(StorageError, match=r"cannot use the data directory .*file/data: Not a directory"),
        data_lock(str(file / "data")),
    ):
        pass


def test_an_error_while_locked_releases_the_lock(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="port in use"), data_lock(str(tmp_path)):
        raise OSError("port in use")
    with data_lock(str(tmp_path)):
        pass
