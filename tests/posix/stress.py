# SPDX-License-Identifier: Apache-2.0
"""stress-ng's stressors of files, each with its own checks switched on; dbench."""
from case import Case, Failed, Missing, need, run

STRESSORS = """access chdir chmod chown copy-file dentry dir dirdeep dirmany dup fallocate fcntl file-ioctl filename flock
fpunch fstat getdent hdd inode-flags inotify io iomix lease link locka lockf lockofd mknod mmap mmapfork mmapmany
msync open readahead rename seek sendfile splice symlink sync-file tee touch utime verity vm-splice xattr""".split()
NO_RESOURCES, NOT_IMPLEMENTED = 3, 4


def stressor(name):
    def work(case):
        need("stress-ng")
        command = ["stress-ng", f"--{name}", "2", "--timeout", "3", "--verify", "--temp-path"]
        try:
            run(*command, case.mnt, cwd=case.mnt)
        except Failed as failed:
            if failed.status not in (NO_RESOURCES, NOT_IMPLEMENTED):
                raise
            # The machine's, when it is the same without the mount.
            run(*command, case.plain, cwd=case.plain, good=(failed.status,))
            raise Missing(f"what stress-ng --{name} needs") from None
    return work


def dbench(case):
    need("dbench")
    run("dbench", "-D", case.mnt, "-t", "10", "4", cwd=case.mnt)


def cases(quick):
    if quick:
        return []
    return [Case(f"stress-{name}", stressor(name)) for name in STRESSORS] + [Case("dbench", dbench)]
