"""A file is written whole, or nothing has happened: on a disk that is full, where a replace is refused, and in between."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import threading

import pytest

from headrace_formats import write_whole


@pytest.fixture(params=[False, True], ids=["new", "there"])
def path(request, tmp_path):
    """A file in a folder with nothing else, which is there in one of two cases."""
    if request.param:
        (tmp_path / "file.bin").write_bytes(b"old")
    return tmp_path / "file.bin"


def state_of(path):
    """What a folder holds: the content of each file by its name."""
    return {each.name: each.read_bytes() for each in path.parent.iterdir()}


@pytest.mark.parametrize(
    ("content", "written"),
    [
        (b"\x00\xff", b"\x00\xff"),
        (memoryview(b"12345")[1:3], b"23"),
        ("Größe\n", b"Gr\xc3\xb6\xc3\x9fe\n"),
        (lambda part: part.write_bytes(b"filled"), b"filled"),
    ],
    ids=["bytes", "view", "text", "function"],
)
@pytest.mark.parametrize("sync", [False, True])
def test_the_new_content_takes_the_place_and_nothing_is_beside_it(path, content, written, sync):
    write_whole(path, content, sync=sync)
    assert state_of(path) == {"file.bin": written}


def test_a_full_disk_leaves_what_was_there_and_no_part(path):
    before, limits = state_of(path), resource.getrlimit(resource.RLIMIT_FSIZE)
    on_signal = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match=r"file\.bin") as caught:
            write_whole(path, bytes(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, on_signal)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))
    assert state_of(path) == before


@pytest.mark.parametrize(
    "failure",
    [OSError(errno.ENOSPC, "full"), OSError("no number"), ValueError(), KeyboardInterrupt()],
)
def test_a_function_that_fails_in_the_middle_leaves_what_was_there_and_no_part(path, failure):
    before = state_of(path)

    def fill(part):
        part.write_bytes(b"half")
        raise failure

    with pytest.raises(type(failure)) as caught:
        write_whole(path, fill)
    assert state_of(path) == before
    if getattr(failure, "errno", None):
        assert caught.value.filename == str(path)


def test_a_refused_replace_leaves_no_part(tmp_path):
    def fill(part):
        part.write_bytes(b"whole")
        (tmp_path / "place").mkdir()  # by another program, in this moment

    with pytest.raises(IsADirectoryError) as caught:
        write_whole(tmp_path / "place", fill)
    assert caught.value.filename == str(tmp_path / "place")
    assert [each.name for each in tmp_path.iterdir()] == ["place"]


def test_a_folder_that_is_not_there_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        write_whole(tmp_path / "none" / "file", b"")
    assert caught.value.filename == str(tmp_path / "none" / "file")


def test_no_file_takes_the_place_of_a_pipe_or_a_folder(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(OSError, match="it is no file") as caught:
            write_whole(tmp_path / name, b"")
        assert caught.value.errno == errno.EINVAL
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "pipe"]


def test_a_link_makes_room_and_what_it_names_is_unchanged(tmp_path):
    (tmp_path / "other").write_bytes(b"other")
    (tmp_path / "link").symlink_to("other")
    write_whole(tmp_path / "link", b"new")
    assert not (tmp_path / "link").is_symlink()
    assert state_of(tmp_path / "link") == {"other": b"other", "link": b"new"}


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_the_file_has_the_permissions_that_were_asked_for_and_the_part_no_more(path, mode):
    seen = []

    def fill(part):
        seen.append(stat.S_IMODE(part.stat().st_mode))

    write_whole(path, fill, mode=mode)
    assert (seen, stat.S_IMODE(path.stat().st_mode)) == ([0o600], mode)


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "any").touch()
    write_whole(tmp_path / "file", b"")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "any").stat().st_mode


def test_a_name_as_long_as_file_systems_take_can_be_written(tmp_path):
    path = tmp_path / ("ö" * 127)
    write_whole(path, b"long")
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_reader_sees_whole_contents_whatever_threads_write(tmp_path):
    path = tmp_path / "file"
    contents = [bytes([number]) * 20_000 for number in range(4)]
    write_whole(path, contents[0])

    def write(content):
        for _ in range(20):
            write_whole(path, content)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    seen = set()
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        seen.add(path.read_bytes())
    for thread in threads:
        thread.join()
    assert seen <= {*contents}
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
