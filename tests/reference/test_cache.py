"""What is kept on disk: whole files, believed by their content alone, in a folder of the user's own.

Folders are really unwritable, disks really full (for the process), writers really killed: what does that is a
process of its own, forked, without the rights of root.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import py_compile
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import torch

import scanforge as sf
from scanforge import cache, laws

NOBODY = 65534
KERNEL = "def kernel():\n    return {}\n"
fork = multiprocessing.get_context("fork")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache that does not exist yet, in a place that every user may enter."""
    home = Path(tempfile.mkdtemp(prefix="scanforge-"))
    home.chmod(0o755)
    monkeypatch.setenv("SCANFORGE_CACHE", str(home / "kept"))
    yield home / "kept"
    for path in home.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(home)


def loaded(number: int) -> int:
    """What a kernel's module says, as a new process would load it."""
    cache.load_kernel_module.cache_clear()
    found: int = cache.load_kernel_module(KERNEL.format(number)).kernel()
    return found


def kernel_file(folder: Path, number: int) -> Path:
    return folder / f"scanforge_{sha256(KERNEL.format(number).encode()).hexdigest()[:24]}.py"


def in_process(action: Callable[[], None], *, owner_of: Path | None = None) -> int:
    """The exit code of a forked process that does this as a user without root's rights, owner of a folder."""
    if owner_of is not None and os.getuid() == 0:
        for path in (owner_of.parent, *owner_of.rglob("*"), owner_of):
            if path.exists():
                os.chown(path, NOBODY, NOBODY)

    def run() -> None:
        if os.getuid() == 0:
            os.setuid(NOBODY)
        action()

    process = fork.Process(target=run)
    process.start()
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


class TestEntries:
    def test_a_kernel_is_a_file_named_after_its_content(self, folder):
        assert loaded(1) == 1
        assert kernel_file(folder, 1).read_text() == KERNEL.format(1)
        assert kernel_file(folder, 1).stat().st_mode & 0o777 == 0o600
        assert folder.stat().st_mode & 0o777 == 0o700

    @pytest.mark.parametrize("content", ["", "def kernel", KERNEL.format(99), "\udcff"], ids=repr)
    def test_a_corrupt_or_foreign_kernel_does_not_run_and_is_written_anew(self, folder, content):
        loaded(1)
        kernel_file(folder, 1).write_bytes(content.encode(errors="surrogateescape"))
        assert loaded(1) == 1
        assert kernel_file(folder, 1).read_text() == KERNEL.format(1)

    def test_a_compiled_file_beside_a_kernel_does_not_run(self, folder):
        """Python would take it for the kernel's: of the same name, with its time and size in it."""
        loaded(1)
        file, planted = kernel_file(folder, 1), kernel_file(folder, 1).with_name("planted.py")
        planted.write_text(KERNEL.format(7))
        times = file.stat()
        os.utime(planted, ns=(times.st_atime_ns, times.st_mtime_ns))
        (folder / "__pycache__").mkdir()
        py_compile.compile(str(planted), cfile=str(folder / "__pycache__" / f"{file.stem}.cpython-311.pyc"))
        assert loaded(1) == 1

    def test_a_link_in_a_kernel_s_place_is_replaced_and_what_it_points_at_is_whole(self, folder):
        loaded(1)
        mine = folder.parent / "mine.txt"
        mine.write_text("mine")
        kernel_file(folder, 1).unlink()
        kernel_file(folder, 1).symlink_to(mine)
        assert loaded(1) == 1
        assert mine.read_text() == "mine"
        assert not kernel_file(folder, 1).is_symlink()

    def test_what_was_kept_is_recalled_by_another_process(self, folder):
        cache.keep("laws", "a text", [1, 2])
        assert cache.recall("laws", "a text") == [1, 2]
        assert cache.recall("laws", "another") is None
        assert cache.recall("plans", "a text") is None

    @pytest.mark.parametrize("spoil", ["empty", "cut", "one digit", "valid JSON", "a list", "no text"])
    def test_what_was_spoilt_is_not_recalled(self, folder, spoil):
        cache.keep("laws", "a text", [1, 2])
        (file,) = folder.glob("laws_*")
        whole = file.read_text()
        other = json.dumps({"text": "a text", "found": [1, 3]})
        content = {
            "empty": "", "cut": whole[: len(whole) // 2], "one digit": whole.replace("[1, 2]", "[1, 3]"),
            "valid JSON": other, "a list": "[]", "no text": "\udcff",
        }[spoil]  # fmt: skip
        file.write_bytes(content.encode(errors="surrogateescape"))
        assert cache.recall("laws", "a text") is None
        cache.keep("laws", "a text", [1, 2])
        assert file.read_text() == whole

    def test_a_folder_in_an_entry_s_place(self, folder):
        cache.keep("laws", "a text", 1)
        (file,) = folder.glob("laws_*")
        file.unlink()
        file.mkdir()
        cache.keep("laws", "a text", 1)
        assert cache.recall("laws", "a text") is None
        assert sorted(folder.iterdir()) == [file]


class TestFolders:
    @pytest.mark.parametrize("mode", [0o777, 0o770, 0o750, 0o701])
    def test_one_that_others_may_enter_is_refused(self, folder, mode):
        folder.mkdir()
        folder.chmod(mode)
        with pytest.raises(sf.BackendError, match=f"chmod 700 {folder}") as caught:
            loaded(1)
        assert str(caught.value).endswith("SCANFORGE_CACHE.")

    def test_one_of_another_owner_is_refused(self, folder, monkeypatch):
        folder.mkdir(mode=0o700)
        if os.getuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        else:
            monkeypatch.setattr(os, "getuid", lambda: NOBODY)
        with pytest.raises(sf.BackendError, match="not a folder private to this user"):
            loaded(1)

    @pytest.mark.parametrize("exists", [True, False], ids=["to a folder", "to nothing"])
    def test_a_link_is_refused(self, folder, exists):
        target = folder.parent / "target"
        if exists:
            target.mkdir(mode=0o700)
        folder.symlink_to(target)
        with pytest.raises(sf.BackendError, match="not a folder private to this user"):
            loaded(1)
        assert not exists or not list(target.iterdir())

    def test_a_file_is_refused(self, folder):
        folder.write_text("no folder")
        with pytest.raises(sf.BackendError, match="not a folder private to this user"):
            loaded(1)
        assert folder.read_text() == "no folder"

    def test_laws_are_checked_anew_where_no_folder_is_private(self, folder):
        folder.mkdir()
        folder.chmod(0o777)
        laws.check_laws.cache_clear()
        one = torch.ones(1, 3)
        assert sf.scan(sf.operators.Affine, a=one, b=one).tolist() == [[1, 2, 3]]
        assert not list(folder.iterdir())


def right() -> None:
    """A kernel, laws and a scan, and no file."""
    assert loaded(5) == 5
    assert cache.recall("laws", "a new text") is None
    cache.keep("laws", "a new text", 1)
    assert cache.recall("laws", "a new text") is None
    laws.check_laws.cache_clear()
    one = torch.ones(1, 3)
    assert sf.scan(sf.operators.Affine, a=one, b=one).tolist() == [[1, 2, 3]]


class TestNoRoom:
    def test_a_folder_that_is_read_only(self, folder):
        """What it holds is read, what it cannot hold is in memory."""
        loaded(1)
        cache.keep("laws", "a text", [1])
        folder.chmod(0o500)

        def action() -> None:
            right()
            assert cache.recall("laws", "a text") == [1]

        before = sorted(folder.iterdir())
        assert in_process(action, owner_of=folder) == 0
        assert sorted(folder.iterdir()) == before

    def test_a_home_that_is_read_only(self, folder):
        folder.parent.chmod(0o555)
        assert in_process(right, owner_of=folder) == 0
        assert not folder.exists()

    def test_a_user_without_a_home(self, folder, monkeypatch):
        """As a container has, whose user is a number alone."""
        for name in ("SCANFORGE_CACHE", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)

        def none() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr(cache.Path, "home", none)
        right()

    def test_a_system_without_owners(self, folder, monkeypatch):
        """As Windows is: folders look open to all, and nothing says whose they are."""
        folder.mkdir()
        folder.chmod(0o777)
        monkeypatch.delattr(os, "getuid")
        cache.keep("laws", "a text", 1)
        assert cache.recall("laws", "a text") is None
        laws.check_laws.cache_clear()
        one = torch.ones(1, 3)
        assert sf.scan(sf.operators.Affine, a=one, b=one).tolist() == [[1, 2, 3]]
        assert not list(folder.iterdir())

    def test_a_full_disk(self, folder):
        """No byte more can be written; what is there stays, and no half of a file is left."""
        loaded(1)
        cache.keep("laws", "a text", [1])
        before = {p: p.read_bytes() for p in folder.iterdir()}

        def action() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
            right()
            assert cache.recall("laws", "a text") == [1]

        assert in_process(action, owner_of=folder) == 0
        assert {p: p.read_bytes() for p in folder.iterdir()} == before

    def test_a_spoilt_file_on_a_full_disk(self, folder):
        loaded(5)
        kernel_file(folder, 5).write_text(KERNEL.format(99))

        def action() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
            assert loaded(5) == 5

        assert in_process(action, owner_of=folder) == 0


class TestProcesses:
    def test_one_that_is_killed_while_it_writes(self, folder):
        """Before its file bears the name: nothing of it is seen, and the next process writes it."""
        loaded(1)

        def action() -> None:
            cache.Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            loaded(5)

        assert in_process(action, owner_of=folder) == -signal.SIGKILL
        assert len(list(folder.iterdir())) == 2  # a part without a name
        assert [p.name for p in folder.glob("*.py")] == [kernel_file(folder, 1).name]
        assert in_process(lambda: None if loaded(5) == 5 else os._exit(1), owner_of=folder) == 0
        assert kernel_file(folder, 5).read_text() == KERNEL.format(5)

    def test_many_that_write_the_same(self, folder):
        """Each finds a whole file, or none, at any time."""
        stop = time.monotonic() + 1.0

        def write() -> None:
            while time.monotonic() < stop:
                cache.keep("laws", "a text", list(range(1000)))
                kernel_file(folder, 2).unlink(missing_ok=True)
                assert loaded(2) == 2
                assert cache.recall("laws", "a text") == list(range(1000))
                text = cache._read(kernel_file(folder, 2))
                assert text in {None, KERNEL.format(2)}

        writers = [fork.Process(target=write) for _ in range(3)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(60)
        assert [writer.exitcode for writer in writers] == [0, 0, 0]
        assert len(list(folder.iterdir())) == 2
