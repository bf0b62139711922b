"""One process per data directory."""

import os
from pathlib import Path

import pytest

from moldau.cli.data_lock import data_lock
from moldau.errors import StorageError


def test_a_directory_is_made_and_held_by_one_at_a_time(tmp_path: Path) -> None:
    data_dir = str(tmp_path / "deep" / "data")
    with (
        data_lock(data_dir),
        pytest.raises(StorageError, match=rf"data is in use by process {os.getpid()}; .*--data-dir"),
        data_lock(data_dir),
    ):
        pass
    with data_lock(data_dir):
        pass


def test_a_lock_file_left_by_a_dead_process_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("1234567890\n")
    with data_lock(str(tmp_path)):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"


def test_what_cannot_be_a_directory_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with (
        pytest.raises(StorageError, match=r"cannot use the data directory .*file/data: Not a directory"),
        data_lock(str(file / "data")),
    ):
        pass


def test_an_error_of_the_holder_stays_what_it_is_and_frees_the_directory(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="port in use"), data_lock(str(tmp_path)):
        raise OSError("port in use")
    with data_lock(str(tmp_path)):
        pass
