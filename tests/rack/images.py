"""What the nodes boot: a Debian kernel and a small initramfs with its RDMA modules, made once and kept.

They stand in ``~/.cache/tbkit/rack`` (``XDG_CACHE_HOME`` is heeded) in a folder named by the content of this file: a
change here makes new ones, a deleted folder takes the kernel that Debian gives then. The packages are unpacked, not
installed. Booting needs no network; building does, once.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

# crc32_generic: without it rxe refuses every device (its checksum is not found). sch_netem: cables that lose.
MODULES = (
    "virtio_pci", "virtio_net", "virtio_console", "9pnet_virtio", "9p", "overlay", "crc32_generic", "rdma_rxe",
    "sch_netem",
)  # fmt: skip
# The node's root is the host's root, read-only, under a layer in memory: same Python, same checkout, same paths.
# cache=loose: importing Python over 9p is slow without it. A file that changes after the node read it stays old
# there until Node.forget_files().
INIT = r"""#!/bin/busybox sh
for name in mount cat insmod mkdir sed chroot; do /bin/busybox ln -s busybox /bin/$name; done
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do insmod /modules/$module; done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=1048576,cache=loose host /host
mount -t tmpfs tmpfs /writable; mkdir /writable/upper /writable/work
mount -t overlay -o lowerdir=/host,upperdir=/writable/upper,workdir=/writable/work overlay /node
mount -t proc proc /node/proc; mount -t sysfs sys /node/sys; mount -t devtmpfs dev /node/dev
mkdir -p /node/dev/shm /node/dev/pts; mount -t tmpfs shm /node/dev/shm; mount -t devpts pts /node/dev/pts
mount -t tmpfs run /node/run
word() { sed "s/.*rack.$1=\([^ ]*\).*/\1/" /proc/cmdline; }
exec chroot /node /bin/bash $(word script) $(word node) $(word python) $(word keys)
"""
APT_S = 300
LEFT_S = 3600
_MAGIC = {b"\xfd7zXZ\x00": lzma.decompress, b"\x1f\x8b\x08": gzip.decompress}


class Missing(Exception):
    """This machine cannot have the images; says why in one line."""


class Images(NamedTuple):
    """The files that qemu loads, and the folder of the ssh keys."""

    kernel: Path
    initramfs: Path
    keys: Path


def images() -> Images:
    """The kept images, built if they are not there. Missing says why this machine cannot have them."""
    if platform.system() != "Linux" or platform.machine() != "x86_64" or not shutil.which("apt-get"):
        raise Missing(f"the rack boots Debian on x86-64, this is {platform.system()} {platform.machine()}")
    folder = _cache()
    keys = folder / "keys"
    if not keys.is_dir():
        _keep(keys, _make_keys)
    made = folder / hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    if not made.is_dir():
        _keep(made, _build)
    return Images(made / "vmlinux", made / "initramfs.gz", keys)


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tbkit" / "rack"
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob("making-*"):  # by a build that was killed
        if time.time() - left.stat().st_mtime > LEFT_S:
            shutil.rmtree(left, ignore_errors=True)
    return folder


def _keep(target: Path, make: Callable[[Path], None]) -> None:
    """Let ``make`` fill a folder, which then gets its name in one step: no reader sees a half of it."""
    with tempfile.TemporaryDirectory(
        dir=target.parent, prefix="making-", ignore_cleanup_errors=True
    ) as folder:
        make(Path(folder))
        try:
            Path(folder).rename(target)
        except OSError:  # another process was faster
            if not target.is_dir():
                raise


def _kernel() -> str:
    """The name of the kernel package that Debian gives now."""
    found = re.search(r"Depends: (linux-image-\S+)", _run("apt-cache", "depends", "linux-image-amd64"))
    if found is None:
        raise Missing("apt knows no kernel: run apt-get update")
    return found.group(1)


def _run(*command: str, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=APT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise Missing(f"{' '.join(command[:3])} failed: {said.strip().splitlines()[-1]}") from error
    return done.stdout


def _make_keys(target: Path) -> None:
    """The key with which the host enters and the key that every node shows: for machines that last minutes."""
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "rack", "-f", str(target / "client"))
    _run("dropbearkey", "-t", "ed25519", "-f", str(target / "host"))


def _build(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target, prefix="packages-") as folder:
        unpacked = Path(folder) / "root"
        _run(
            "apt-get",
            "-q",
            "-o",
            "APT::Sandbox::User=root",
            "download",
            _kernel(),
            "busybox-static",
            cwd=Path(folder),
        )
        for package in Path(folder).glob("*.deb"):
            _run("dpkg-deb", "-x", str(package), str(unpacked))
        (kernel,) = (unpacked / "boot").glob("vmlinuz-*")
        (target / "vmlinux").write_bytes(unpack_kernel(kernel.read_bytes()))
        archive = b"".join(_archive(unpacked))
    (target / "initramfs.gz").write_bytes(gzip.compress(archive, 1))


def unpack_kernel(image: bytes) -> bytes:
    """The ELF file inside a bzImage: unpacking it under emulation would take seconds at every boot.

    The boot protocol's header says where the compressed kernel stands (payload_offset, payload_length).
    """
    sectors = image[0x1F1] or 4
    offset, length = (int.from_bytes(image[at : at + 4], "little") for at in (0x248, 0x24C))
    start = (sectors + 1) * 512 + offset
    payload = image[start : start + length - 4]  # the last four bytes are its unpacked size
    for magic, unpack in _MAGIC.items():
        if payload.startswith(magic):
            return unpack(payload)
    raise Missing(f"the kernel is packed in an unknown way ({payload[:6].hex()})")


def _archive(unpacked: Path) -> Iterator[bytes]:
    """The initramfs as a cpio archive: busybox, the modules in their order, ``init``."""
    modules = {path.name.split(".")[0].replace("-", "_"): path for path in unpacked.rglob("*.ko*")}
    files = {name: unsigned(modules[name]) for name in load_order(modules)}
    busybox = next(path for path in unpacked.rglob("busybox") if path.parent.name == "bin")
    for folder in ("bin", "modules", "proc", "sys", "dev", "host", "writable", "node"):
        yield _entry(folder, 0o040755)
    yield _entry("bin/busybox", 0o100755, busybox.read_bytes())
    yield _entry("init", 0o100755, INIT.encode())
    for name, data in files.items():
        yield _entry(f"modules/{name}.ko", 0o100644, data)
    yield _entry("modules/order", 0o100644, "\n".join(f"{name}.ko" for name in files).encode())
    yield _entry("TRAILER!!!", 0)


def load_order(modules: dict[str, Path]) -> list[str]:
    """MODULES and all they depend on, each after what it needs; a module built into the kernel is left out."""
    order: list[str] = []

    def add(name: str) -> None:
        if name in order or name not in modules:
            return
        depends = re.search(rb"\0depends=([^\0]*)", unsigned(modules[name]))
        for needed in depends.group(1).decode().split(",") if depends else []:
            add(needed.replace("-", "_"))
        order.append(name)

    for name in MODULES:
        add(name)
    return order


def unsigned(path: Path) -> bytes:
    """The module without its signature, whose check takes long under emulation."""
    data = path.read_bytes()
    plain = lzma.decompress(data) if path.suffix == ".xz" else data
    mark = b"~Module signature appended~\n"
    if not plain.endswith(mark):
        return plain
    signature_bytes = int.from_bytes(plain[-len(mark) - 4 : -len(mark)], "big")
    return plain[: -len(mark) - 12 - signature_bytes]


def _entry(name: str, mode: int, data: bytes = b"") -> bytes:
    """One member of a cpio archive in the "newc" format."""
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)
