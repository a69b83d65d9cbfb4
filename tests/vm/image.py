#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build what a virtual machine boots: the kernel of a Debian package and an initramfs with busybox, modules, and
programs with the libraries they need.

Nothing is installed: packages are downloaded once to build/vm and unpacked there. The release is that of the machine, or of a
userland that of_userland() names (build/vm-NAME).
"""
import glob
import lzma
import os
import re
import shutil
import stat
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
FOLDER = os.path.join(TOP, "build", "vm")
KERNEL = "linux-image-amd64"
APT = []  # options
# crc32c_generic: ext4 asks for it by an alias, which nobody here resolves.
MODULES = ["virtio_pci", "virtio_blk", "virtio_console", "crc32c_generic", "ext4", "loop", "fuse"]


class Unavailable(Exception):
    """Something that is not to be had on this machine, and why."""


def of_userland(root):
    """From now on packages are those of the release that is installed in a folder."""
    global FOLDER  # pylint: disable=global-statement
    FOLDER = os.path.join(TOP, "build", f"vm-{os.path.basename(os.path.abspath(root))}")
    APT[:] = ["-o", f"Dir={os.path.abspath(root)}", "-o", "APT::Sandbox::User=root"]


def say(*command, cwd=None):
    environment = {**os.environ, "LC_ALL": "C", "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    try:
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]}: {error}") from None
    if done.returncode:
        why = (done.stderr.strip() or done.stdout.strip() or "failed").splitlines()[-1]
        raise Unavailable(f"{' '.join(command)}: {why}")
    return done.stdout


def unpack(package):
    """The folder with a package's files; a newer version is fetched only after `make clean`."""
    folder = os.path.join(FOLDER, package)
    if os.path.isdir(folder):
        return folder
    os.makedirs(FOLDER, exist_ok=True)
    work = f"{folder}.{os.getpid()}"
    os.mkdir(work)
    try:
        try:
            say("apt-get", *APT, "-q", "download", package, cwd=work)
        except Unavailable:  # the lists may be older than what the mirror has
            say("apt-get", *APT, "-q", "update")
            say("apt-get", *APT, "-q", "download", package, cwd=work)
        found = glob.glob(os.path.join(work, "*.deb"))
        say("dpkg-deb", "-x", found[0], os.path.join(work, "files"))
        try:
            os.rename(os.path.join(work, "files"), folder)
        except OSError:  # somebody else was faster
            if not os.path.isdir(folder):
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def kernel_package():
    """The package that a metapackage stands for."""
    kept = glob.glob(os.path.join(FOLDER, "linux-image-[0-9]*-amd64"))
    if kept:
        return os.path.basename(kept[0])
    for _ in range(2):
        found = re.search(r"Depends: (linux-image-\d\S*)", say("apt-cache", *APT, "depends", KERNEL))
        if found:
            return found[1]
        say("apt-get", *APT, "-q", "update")
    raise Unavailable(f"{KERNEL}: not in the package lists")


def vmlinux(folder):
    """The kernel as it runs: under emulation unpacking it at each boot takes longer than all the rest."""
    path = os.path.join(folder, "vmlinux")
    if not os.path.exists(path):
        packed = glob.glob(os.path.join(folder, "boot", "vmlinuz-*"))[0]
        with open(packed, "rb") as file:
            data = file.read()
        start = data.find(b"\xfd7zXZ\0")
        try:
            plain = lzma.LZMADecompressor().decompress(data[start:]) if start > 0 else b""
        except lzma.LZMAError:
            plain = b""
        if not plain.startswith(b"\x7fELF"):
            return packed
        with open(f"{path}.{os.getpid()}", "wb") as file:
            file.write(plain)
        os.rename(f"{path}.{os.getpid()}", path)
    return path


class Modules:
    """The modules of a kernel, in the order in which they must be loaded."""

    def __init__(self, folder):
        self.paths = {}
        for path in glob.glob(os.path.join(folder, "**", "*.ko*"), recursive=True):
            self.paths[os.path.basename(path).partition(".ko")[0].replace("-", "_")] = path
        self.order = []

    def bytes(self, name):
        with (lzma.open if self.paths[name].endswith(".xz") else open)(self.paths[name], "rb") as file:
            return file.read()

    def add(self, name):
        """A module of the kernel's; or one of its own, by its path."""
        if name.endswith(".ko"):
            path, name = name, os.path.basename(name).removesuffix(".ko")
            self.paths[name] = path
        name = name.replace("-", "_")
        if name in self.order or name not in self.paths:  # not there: built in
            return
        depends = re.search(rb"\0depends=([^\0]*)\0", self.bytes(name))
        for other in filter(None, depends[1].decode().split(",") if depends else []):
            self.add(other)
        self.order.append(name)


def libraries(program):
    """The files that a program needs, by the path it looks for them, but for what is in no file."""
    found = {}
    for line in say("ldd", program).splitlines():
        match = re.match(r"\s*(?:(\S+) => )?(/\S+) \(0x", line)
        if match:
            name = match[1] or match[2]
            found[match[2] if name.startswith("/") else f"/lib/{name}"] = match[2]
        elif "not found" in line:
            raise Unavailable(f"{program}: {line.strip()}")
    return found


class Archive:
    """A cpio archive (newc), as the kernel reads it."""

    def __init__(self):
        self.parts, self.folders, self.number = [], set(), 0

    def entry(self, path, mode, data):
        self.number += 1
        name = path.lstrip("/").encode() + b"\0"
        fields = (self.number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
        self.parts += [head, bytes(-len(head) % 4), data, bytes(-len(data) % 4)]

    def folder(self, path):
        if path not in ("", "/") and path not in self.folders:
            self.folder(os.path.dirname(path))
            self.folders.add(path)
            self.entry(path, stat.S_IFDIR | 0o755, b"")

    def bytes(self, path, data, mode=0o755):
        self.folder(os.path.dirname(path))
        self.entry(path, stat.S_IFREG | mode, data)

    def file(self, path, source):
        with open(source, "rb") as file:
            self.bytes(path, file.read())

    def done(self):
        self.entry("TRAILER!!!", 0, b"")
        return b"".join(self.parts)


def build(programs=(), files=(), modules=()):
    """(path of the kernel, bytes of the initramfs). programs: {path inside: path here}, which bring their libraries;
    files: {path inside: path here or bytes}; modules: more of them."""
    kernel = unpack(kernel_package())
    busybox = unpack("busybox-static")
    archive, wanted = Archive(), {}
    for folder in ("/proc", "/sys", "/dev", "/etc", "/bin", "/sbin", "/mnt", "/tmp"):
        archive.folder(folder)
    archive.file("/init", os.path.join(HERE, "init"))
    archive.file("/bin/busybox", glob.glob(os.path.join(busybox, "**", "bin", "busybox"), recursive=True)[0])
    for path, source in dict(programs).items():
        archive.file(path, source)
        wanted.update(libraries(source))
    for path, source in wanted.items():
        archive.file(path, source)
    for path, source in dict(files).items():
        if isinstance(source, bytes):
            archive.bytes(path, source)
        else:
            archive.file(path, source)
    loaded = Modules(kernel)
    for name in (*MODULES, *modules):
        loaded.add(name)
    for name in loaded.order:
        archive.bytes(f"/modules/{name}.ko", loaded.bytes(name))
    archive.bytes("/modules/order", "\n".join(loaded.order).encode())
    return vmlinux(kernel), archive.done()


def tree():
    """(programs, files) of the built tree, for build()."""
    paths = {"/bin/mount.gaiafs": "mount.gaiafs", "/bin/gaiactl": "gaiactl",
             "/bin/tool_agent": "build/gcc/tests/vm/tool_agent"}
    for path in paths.values():
        if not os.path.exists(os.path.join(TOP, path)):
            raise Unavailable(f"{path} is not built (make tools)")
    return {inside: os.path.join(TOP, path) for inside, path in paths.items()}, {}


if __name__ == "__main__":
    try:
        path_of_kernel, initramfs = build(*tree())
    except Unavailable as problem:
        sys.exit(f"no image: {problem}")
    print(path_of_kernel, f"{len(initramfs) >> 20} MiB of initramfs")
