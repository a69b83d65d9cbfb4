# SPDX-License-Identifier: Apache-2.0
"""A virtual machine under qemu's software emulation."""
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import time

import image

QEMU = "qemu-system-x86_64"
BEGINS, BOOT_S = "init: begins", 60  # /init's first line comes after some eight seconds
# Without what makes kernel and C library choose copies that are slow when they are emulated: byte by byte (erms, fsrm), or
# in wide registers. About a seventh of the processor time of a run (measured twice, in turns).
CPU = "max,la57=off,erms=off,fsrm=off,avx=off,avx2=off"


def check():
    if not shutil.which(QEMU):
        raise image.Unavailable(f"no {QEMU} here (Debian: qemu-system-x86)")


class Machine:
    """Boots at once. kernel, initramfs: of image.build(); script: what /init runs; disks: paths of images, or of
    sockets with an NBD server; ports: names of serial ports (/dev/ports/NAME inside); share: a folder that the machine
    can read by 9p, as "share"; processors: how many; monitor: qemu's (QMP) is
    the port "monitor"; more: other arguments of qemu."""

    def __init__(self, kernel, initramfs, script, disks=(), ports=(), memory_mib=1024, limit_s=120, share=None, processors=2, monitor=False,
                 more=()):
        check()
        self.folder = tempfile.mkdtemp(prefix="gaiafs-vm-", dir=os.environ.get("GAIA_TEST_DIR", "/var/tmp"))
        self.deadline = time.monotonic() + limit_s
        self.changed, self.proc = threading.Condition(), None
        with open(os.path.join(self.folder, "initramfs"), "wb") as file:
            file.write(initramfs)
            extra = image.Archive()
            extra.bytes("/script", script.encode())
            file.write(bytes(-file.tell() % 512) + extra.done())
        command = [QEMU, "-accel", "tcg,thread=multi", "-cpu", CPU, "-smp", str(processors), "-m", str(memory_mib),
                   "-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio", "-kernel", kernel,
                   "-initrd", os.path.join(self.folder, "initramfs"),
                   "-append", "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off tsc=reliable no_timer_check",
                   "-device", "virtio-serial-pci,max_ports=31"]
        for i, disk in enumerate(disks):
            command += ["-drive", f"if=none,id=d{i},format=raw,cache=writeback,file="
                        + (f"nbd:unix:{disk}" if is_socket(disk) else disk),
                        "-device", f"virtio-blk-pci,drive=d{i},write-cache=on"
                        + (",logical_block_size=4096,physical_block_size=4096" if is_socket(disk) else "")]
        if monitor:
            command += ["-qmp", f"unix:{os.path.join(self.folder, 'monitor')},server=on,wait=off"]
        command += more
        if share:
            command += ["-virtfs", f"local,path={share},mount_tag=share,security_model=none,readonly=on,multidevs=remap"]
        for i, name in enumerate(ports):
            path = os.path.join(self.folder, name)
            command += ["-chardev", f"socket,id=p{i},path={path},server=on,wait=off",
                        "-device", f"virtserialport,chardev=p{i},name={name}"]
        try:
            self.start(command)
            # A kernel that was starved as it measured its timers has none that come; nothing of the machine was used yet.
            if not self.begins(min(BOOT_S, limit_s / 3)):
                print("the machine does not boot; once more:\n" + self.console(), flush=True)
                self.stop()
                self.start(command)
        except BaseException:
            self.kill()
            raise

    def start(self, command):
        self.lines, self.ended = [], False
        self.proc = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT)
        self.reader = threading.Thread(target=self.read, args=[self.proc.stdout], daemon=True)
        self.reader.start()

    def begins(self, seconds):
        """Whether /init does, or the machine ends, within so long."""
        with self.changed:
            return self.changed.wait_for(lambda: self.ended or BEGINS in self.lines, seconds)

    def read(self, output):
        for line in output:
            with self.changed:
                self.lines.append(line.decode(errors="replace").rstrip())
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def port(self, name):
        """A connection to a serial port; it may be made before anybody inside has opened it."""
        connection = socket.socket(socket.AF_UNIX)
        while True:
            try:
                connection.connect(os.path.join(self.folder, name))
                connection.settimeout(max(1, self.deadline - time.monotonic()))
                return connection
            except (FileNotFoundError, ConnectionRefusedError):
                if self.proc.poll() is not None or time.monotonic() > self.deadline:
                    raise AssertionError(f"qemu has no port {name}\n{self.console()}") from None
                time.sleep(0.02)

    def wait(self, pattern=r"^script: exit (\d+)"):
        """The match of the first line of the console that has it; AssertionError when it never comes."""
        seen = 0
        with self.changed:
            while True:
                for line in self.lines[seen:]:
                    match = re.search(pattern, line)
                    if match:
                        return match
                seen = len(self.lines)
                if self.ended or not self.changed.wait(max(0, self.deadline - time.monotonic())):
                    why = "the machine has ended" if self.ended else "time limit"
                    raise AssertionError(f"{why}, and no {pattern!r} came\n" + self.console())

    def console(self):
        return "\n".join(self.lines[-80:])

    def kill(self):
        """As a power cut: at this very moment."""
        if self.proc:
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def stop(self):
        self.proc.send_signal(signal.SIGKILL)
        self.proc.wait()
        self.reader.join(5)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


def is_socket(path):
    return stat.S_ISSOCK(os.stat(path).st_mode)
