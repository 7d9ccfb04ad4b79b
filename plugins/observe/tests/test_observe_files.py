"""Files are written whole; devices, pipes and links stay what they are."""

from __future__ import annotations

import os
import stat
import threading

import pytest

from headrace_observe.files import check_writable, read_json, write_json, write_whole


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    check_writable(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_json(pipe, {"a": 1})
    reader.join(60)
    assert read == ['{\n  "a": 1\n}\n']
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    file, link = tmp_path / "there" / "file.json", tmp_path / "link.json"
    link.symlink_to(file)
    for content in ("one", "two"):
        check_writable(link)
        write_whole(link, lambda part, content=content: part.write_text(content))
        assert (link.is_symlink(), file.read_text()) == (True, content)
    assert [one.name for one in (tmp_path / "there").iterdir()] == ["file.json"]


def test_a_file_is_unchanged_if_writing_fails(tmp_path):
    file = tmp_path / "file.json"
    file.write_text("old")

    def fail(part):
        part.write_text("half")
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        write_whole(file, fail)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("file.json", "old")]


def test_what_is_written_is_json_and_read_again(tmp_path):
    file = tmp_path / "file.json"
    write_json(file, {"rate": float("nan"), "name": "caf\u00e9 \udc80", "ns": 2**70})
    assert b"NaN" not in file.read_bytes()
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())  # as an editor may save it
    assert read_json(file) == {"rate": None, "name": "caf\u00e9 \udc80", "ns": 2**70}
