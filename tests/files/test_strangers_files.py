"""Data and folders of a stranger: they read and write nothing elsewhere, never wait, and do not fill the memory."""

from __future__ import annotations

import os
import socket
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from helpers.builders import small_arrays
from helpers.training import learnable_dataset, refusal, save_npz, tiny
from safetensors.numpy import save as save_safetensors
from test_foreign_code import change_metadata, minari_folder

from droprl import load_dataset, load_policy
from droprl.data import claims, map_dataset
from droprl.errors import DropError
from droprl.files import memory
from droprl.files.locks import locked
from droprl.files.storage import arrays_from_bytes, remove_folder, remove_partial, write_bytes, write_folder
from droprl.train import Run, fit

assert minari_folder  # a fixture
SECRET = bytes(range(256)) * 64


# --- HDF5 that leads to other files ---


def external(file: h5py.File, home: Path) -> None:
    file.create_dataset("observations", (400, 8), dtype="u1", external=[("secret", 0, 3200)])


def external_link(file: h5py.File, home: Path) -> None:
    with h5py.File(home / "other.hdf5", "w") as other:
        other["observations"] = np.zeros((400, 8), np.float32)
    file["observations"] = h5py.ExternalLink("other.hdf5", "observations")


def soft_link(file: h5py.File, home: Path) -> None:
    external_link(file, home)
    file.move("observations", "there")
    file["observations"] = h5py.SoftLink("/there")


def virtual(file: h5py.File, home: Path) -> None:
    with h5py.File(home / "other.hdf5", "w") as other:
        other["observations"] = np.zeros((400, 8), np.float32)
    layout = h5py.VirtualLayout((400, 8), "f4")
    layout[:] = h5py.VirtualSource("other.hdf5", "observations", (400, 8))
    file.create_virtual_dataset("observations", layout)


def virtual_from_a_pipe(file: h5py.File, home: Path) -> None:
    """Of unlimited length: to ask for its shape already opens the source, and a pipe never answers."""
    os.mkfifo(home / "other.hdf5")
    layout = h5py.VirtualLayout((1, 8), "f4", maxshape=(None, 8))
    source = h5py.VirtualSource("other.hdf5", "observations", (1, 8), maxshape=(None, 8))
    layout[: h5py.h5s.UNLIMITED, :] = source[: h5py.h5s.UNLIMITED, :]
    file.create_virtual_dataset("observations", layout)


def external_pipe(file: h5py.File, home: Path) -> None:
    os.mkfifo(home / "pipe")
    file.create_dataset("observations", (400, 8), dtype="f4", external=[("pipe", 0, 12800)])


OUTSIDE: dict[Callable[[h5py.File, Path], None], str] = {
    external: "observations is stored in another file (external storage)",
    external_pipe: "observations is stored in another file (external storage)",
    external_link: "observations is a link",
    soft_link: "observations is a link",
    virtual: "observations is a virtual dataset",
    virtual_from_a_pipe: "observations is a virtual dataset",
}


@pytest.mark.parametrize("make", OUTSIDE)
def test_hdf5_reads_no_other_file(
    make: Callable[[h5py.File, Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_bytes(SECRET)
    path = tmp_path / "data.hdf5"
    with h5py.File(path, "w") as file:
        make(file, tmp_path)
        for key in ("rewards", "terminals", "timeouts"):
            file[key] = np.arange(400) == 399
        file["actions"] = np.zeros((400, 2), np.float32)
    for load in (load_dataset, lambda source: map_dataset(source, tmp_path / "columns")):
        said = refusal(load, path)
        assert OUTSIDE[make] in said
        assert said.startswith(str(path))
        assert "copy the data itself into this file" in said
    assert not (tmp_path / "columns").exists()


# --- Minari folders ---


def test_minari_folders_lead_nowhere(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    folder: Path = request.getfixturevalue("minari_folder")
    main = folder / "main_data.hdf5"
    with h5py.File(main, "a") as file:
        kept = file["episode_0/observations"][()]
        del file["episode_0/observations"]
        file["episode_0/observations"] = h5py.ExternalLink("/other.hdf5", "x")
    assert "episode_0/observations is a link" in refusal(load_dataset, "mine/toy-v0")
    with h5py.File(main, "a") as file:
        del file["episode_0/observations"]
        file.create_dataset("episode_0/observations", (3, 3), "f4", external=[("/secret", 0, 36)])
    said = refusal(load_dataset, "mine/toy-v0")
    assert f"{main}: episode_0/observations is stored in another file" in said
    with h5py.File(main, "a") as file:
        del file["episode_0/observations"]
        file.create_dataset("episode_0/observations", (2**40, 3), "f4", chunks=(1024, 3))
    assert "episode_0/observations claims shape" in refusal(load_dataset, "mine/toy-v0")
    with h5py.File(main, "a") as file:
        del file["episode_0/observations"]
        file["episode_0/observations"] = kept
    assert load_dataset("mine/toy-v0").n_steps == 2
    main.rename(tmp_path / "elsewhere")
    main.symlink_to(tmp_path / "elsewhere")
    assert f"{main}: is a link" in refusal(load_dataset, "mine/toy-v0")


def test_minari_metadata_cannot_fill_the_memory(request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue("minari_folder")
    space = '{"type": "Box", "dtype": "float32", "shape": [100000000000], "low": 0, "high": 1}'
    deep = "[" * 100_000 + "]" * 100_000
    for changes, said in (
        ({"total_episodes": 10**10}, "claims 10000000000 episodes"),
        ({"observation_space": space}, "observation_space has shape [100000000000]"),
        ({"observation_space": deep}, "nested too deeply"),
        ({"data_format": "arrow"}, "stored as 'arrow'"),
    ):
        kept = (folder / "metadata.json").read_bytes()
        change_metadata(folder, **changes)
        assert said in refusal(load_dataset, "mine/toy-v0")
        (folder / "metadata.json").write_bytes(kept)


# --- sizes ---


def npz_of(path: Path, headers: dict[str, tuple[tuple[int, ...], str]], packing: int = zipfile.ZIP_DEFLATED) -> Path:
    """An archive of zeros with these shapes and types."""
    with zipfile.ZipFile(path, "w", packing) as archive:
        for key, (shape, kind) in headers.items():
            with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                header = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(member, header)
                left = int(np.prod(shape)) * np.dtype(kind).itemsize
                while left > 0:
                    left -= member.write(bytes(min(left, 2**22)))
    return path


def columns(rows: int, **changes: tuple[tuple[int, ...], str]) -> dict[str, tuple[tuple[int, ...], str]]:
    usual = {"observations": ((rows, 3), "f4"), "actions": ((rows, 2), "f4")}
    return usual | {"rewards": ((rows,), "f4"), "terminals": ((rows,), "?")} | changes


def test_sizes_are_checked_before_an_archive_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("an array was read")

    monkeypatch.setattr(np.lib.format, "read_array", never)
    path = tmp_path / "data.npz"
    monkeypatch.setattr(claims, "NEVER_SUSPECT_BYTES", 2**16)
    npz_of(path, columns(200_000), zipfile.ZIP_LZMA)  # packs 5,000 to 1
    assert "observations is packed in a way that NumPy does not use" in refusal(load_dataset, path)
    npz_of(path, columns(100, rewards=((1_000_000,), "f4")))
    assert "rewards has 1000000 rows but observations has 100" in refusal(load_dataset, path)
    npz_of(path, columns(100, action_low=((1_000_000,), "f4")))
    assert "action_low has shape (1000000,)" in refusal(load_dataset, path)
    npz_of(path, columns(100_000))
    monkeypatch.setattr(claims, "available_memory", lambda: 10**6)
    assert "needs 2.5 MB of memory and 1 MB are free" in refusal(load_dataset, path)
    monkeypatch.setattr(claims, "LARGEST_PACKING", 100)
    assert "observations claims shape (100000, 3)" in refusal(load_dataset, path)


def test_a_header_must_agree_with_the_archive(tmp_path: Path) -> None:
    arrays: Any = small_arrays()
    np.savez(tmp_path / "data.npz", **arrays)
    with zipfile.ZipFile(tmp_path / "data.npz") as good, zipfile.ZipFile(tmp_path / "bad.npz", "w") as bad:
        for name in good.namelist():
            content = good.read(name)
            rows = str(len(arrays["rewards"])).encode()
            wide = b"9" * len(rows)
            bad.writestr(name, content.replace(rows + b",", wide + b",", 1) if name == "rewards.npy" else content)
    said = refusal(load_dataset, tmp_path / "bad.npz")
    assert "rewards is damaged or cut short (its header claims" in said


@pytest.mark.parametrize("compressed", [True, False])
def test_data_that_packs_well_still_loads(tmp_path: Path, compressed: bool) -> None:
    """Constant columns and sparse rewards: real data packs up to a thousand to one."""
    rows = 450_000
    arrays = {
        "observations": np.ones((rows, 20), np.float64),
        "actions": np.zeros((rows, 2)),
        "rewards": np.zeros(rows),
    }
    ends: Any = {"terminals": np.zeros(rows, bool), "timeouts": np.arange(rows) % 1000 == 999}
    path = tmp_path / "data.hdf5"
    with h5py.File(path, "w") as file:
        for key, array in (arrays | ends).items():
            if compressed:
                file.create_dataset(key, data=array, compression="gzip", chunks=(min(rows, 100_000), *array.shape[1:]))
            else:  # a column that was never written takes no room in the file
                file.create_dataset(key, array.shape, array.dtype, chunks=True)
                if key in ("timeouts", "observations"):
                    file[key][:] = array
    assert load_dataset(path).n_steps == rows


def test_hdf5_chunks_and_attributes_cannot_fill_the_memory(tmp_path: Path) -> None:
    arrays: Any = small_arrays()
    path = tmp_path / "data.hdf5"
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            if key != "rewards":
                file[key] = array
        rows = len(arrays["rewards"])
        file.create_dataset("rewards", (rows,), "f4", chunks=(2**28,), maxshape=(None,), compression="gzip")
    assert "rewards claims shape" in refusal(load_dataset, path)
    with h5py.File(path, "a") as file:
        del file["rewards"]
        file["rewards"] = arrays["rewards"]
        file.attrs.create("env", ["Hopper-v4"] * 3000, dtype=h5py.string_dtype())
    assert "attribute env has shape (3000,)" in refusal(load_dataset, path)
    with h5py.File(path, "a") as file:
        del file.attrs["env"], file["rewards"]
        file["rewards"] = np.full(rows, b"x")
    assert "rewards holds |S1, not numbers" in refusal(load_dataset, path)


def test_a_header_of_weights_is_not_longer_than_it_may_be(tmp_path: Path) -> None:
    skeleton = {"w": np.zeros((2,), np.float32)}
    content = save_safetensors({"['w']": np.zeros(2, np.float32)})
    assert arrays_from_bytes(content, skeleton, tmp_path)["w"].shape == (2,)
    n = struct.unpack("<Q", content[:8])[0]
    padded = struct.pack("<Q", n + 2**20) + content[8 : 8 + n] + b" " * 2**20 + content[8 + n :]
    assert "a header of" in refusal(arrays_from_bytes, padded, skeleton, tmp_path)


def test_the_free_memory_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    free = memory.available_memory()
    assert 2**24 < free <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    1234 kB\n")
    assert memory._entry(tmp_path / "meminfo", "MemAvailable:") == 1234
    (tmp_path / "max").write_text("max\n")
    assert memory._entry(tmp_path / "max", "") is None


# --- folders ---


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = tmp_path_factory.mktemp("trained")
    return fit(learnable_dataset(), tiny("bc"), out=home / "run", steps=2, progress=False)


def plant_folder_link(place: Path, elsewhere: Path) -> None:
    place.symlink_to(elsewhere, target_is_directory=True)


def plant_pipe(place: Path, elsewhere: Path) -> None:
    os.mkfifo(place)


def plant_socket(place: Path, elsewhere: Path) -> None:
    before = Path.cwd()
    os.chdir(place.parent)  # the whole path is too long for a socket
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(place.name)
    os.chdir(before)


@pytest.mark.parametrize("plant", [plant_folder_link, plant_pipe, plant_socket])
@pytest.mark.parametrize("kind", ["run", "policy", "columns"])
def test_folders_that_lead_elsewhere_are_refused(
    plant: Callable[[Path, Path], None], kind: str, trained: Run, tmp_path: Path
) -> None:
    source, folder = save_npz(learnable_dataset(), tmp_path / "data.npz"), tmp_path / kind
    if kind == "run":
        fit(source, tiny("bc"), out=folder, steps=2, progress=False)
    elif kind == "policy":
        load_policy(trained.path).save(folder)
    else:
        map_dataset(source, folder)
    use: Callable[[], Any] = {
        "run": lambda: Run(folder),
        "policy": lambda: load_policy(folder),
        "columns": lambda: load_dataset(folder),
    }[kind]
    use()
    (tmp_path / "elsewhere").mkdir()
    inside = folder / "evaluations"
    plant(inside, tmp_path / "elsewhere")
    assert refusal(use).startswith(f"{inside}: is a ")
    inside.unlink()
    use()


def test_pipes_given_as_data_are_refused(tmp_path: Path) -> None:
    arrays: Any = small_arrays()
    raw = tmp_path / "raw"
    raw.mkdir()
    for key, array in arrays.items():
        np.save(raw / f"{key}.npy", array)
    (raw / "observations.npy").rename(tmp_path / "observations.npy")
    (raw / "observations.npy").symlink_to(tmp_path / "observations.npy")
    assert "observations.npy: is a link" in refusal(map_dataset, raw, tmp_path / "out")
    (raw / "observations.npy").unlink()
    os.mkfifo(raw / "observations.npy")
    assert "observations.npy: is a pipe" in refusal(map_dataset, raw, tmp_path / "out")
    for name in ("data.hdf5", "data.npz"):
        os.mkfifo(tmp_path / name)
        assert "is not a regular file" in refusal(load_dataset, tmp_path / name)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    victim, place = tmp_path / "victim", tmp_path / "run"
    place.mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").write_text("kept")
    victim.write_text("mine")
    (place / ".lock").symlink_to(victim)
    said = refusal(locked(place).__enter__)
    assert said.startswith(f"{place / '.lock'}: is a link")
    (place / ".lock").unlink()
    os.mkfifo(place / ".lock")
    assert "is a link, a pipe or a device" in refusal(locked(place).__enter__)
    (place / ".partial-data.json").symlink_to(victim)
    write_bytes(place / "data.json", b"new")
    (place / "again").symlink_to(victim)
    write_bytes(place / "again", b"new")
    for name in (".partial-5", ".partial-6"):
        (place / name).symlink_to(tmp_path / "folder")
    write_folder(place / "5", {"x": b"new"})
    remove_partial(place)
    remove_folder(place / "5")
    assert victim.read_text() == "mine"
    assert (tmp_path / "folder" / "kept").read_text() == "kept"
    assert sorted(path.name for path in place.iterdir()) == [".lock", "again", "data.json"]
    assert (place / "again").read_bytes() == b"new"


def test_a_planted_lock_stops_training(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "victim")
    with pytest.raises(DropError, match="is a link"):
        fit(learnable_dataset(), tiny("bc"), out=tmp_path / "run", steps=2, progress=False)
    assert (tmp_path / "victim").read_text() == "mine"
