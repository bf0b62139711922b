"""`replace` on a full disk."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from moldau.platform.os_disk import OsDisk


@pytest.mark.parametrize("failing", ["write", "rename"])
def test_a_failed_replace_on_a_full_disk_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    async def story() -> None:
        disk, path = OsDisk(), tmp_path / "a"
        await disk.replace(str(path), b"first")
        with monkeypatch.context() as broken:
            broken.setattr(os, failing, fail)
            with pytest.raises(OSError, match="no space left"):
                await disk.replace(str(path), b"second")
        assert (os.listdir(tmp_path), path.read_bytes()) == (["a"], b"first")
        await disk.replace(str(path), b"third")
        assert path.read_bytes() == b"third"

    asyncio.run(story())


def test_a_failed_replace_raises_the_original_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        asyncio.run(OsDisk().replace(str(tmp_path / "missing" / "a"), b"data"))
