# SPDX-License-Identifier: Apache-2.0
"""Soft-iWARP's module (siw), which Debian's kernels come without: made of Debian's source of the kernel that image.py boots, against
its headers. Nothing is installed."""
import os
import re
import shutil
import subprocess

import image

WHERE = os.path.join("drivers", "infiniband", "sw", "siw")


def packages():
    """Of the kernel 6.1.0-57-amd64: its headers in two parts, the programs that build modules, and the source."""
    release = image.kernel_package().removeprefix("linux-image-")
    version = re.match(r"\d+\.\d+", release)[0]
    flavour = release.rpartition("-")[0]
    return release, (f"linux-headers-{release}", f"linux-headers-{flavour}-common", f"linux-kbuild-{version}",
                     f"linux-source-{version}")


def make(folder):
    """siw.ko in a new folder. The packages' files refer to each other by where they would be installed."""
    release, names = packages()
    for name in names:
        subprocess.run(["cp", "-a", os.path.join(image.unpack(name), "."), folder], check=True)
    sources = os.path.join(folder, "usr", "src")
    version = names[-1].removeprefix("linux-source-")
    image.say("tar", "-xf", f"linux-source-{version}.tar.xz", os.path.join(f"linux-source-{version}", WHERE), cwd=sources)
    headers = os.path.join(sources, f"linux-headers-{release}")
    with open(os.path.join(headers, "Makefile")) as file:
        text = file.read()
    with open(os.path.join(headers, "Makefile"), "w") as file:
        file.write(text.replace("/usr/src/", f"{sources}/"))
    module = os.path.join(sources, f"linux-source-{version}", WHERE)
    image.say("make", "-C", headers, f"M={module}", "CONFIG_RDMA_SIW=m", "modules")
    return os.path.join(module, "siw.ko")


def built():
    """The module's path; it is made once."""
    path = os.path.join(image.FOLDER, "siw.ko")
    if os.path.exists(path):
        return path
    folder = os.path.join(image.FOLDER, f"siw.{os.getpid()}")
    os.makedirs(folder)
    try:
        os.rename(make(folder), path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return path
