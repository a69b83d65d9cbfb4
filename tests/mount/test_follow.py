# SPDX-License-Identifier: Apache-2.0
"""The daemon's threads move to the processor of a program that waits for its small requests (fs/follow.h).
tests/fs/test_follow.c has when they do not."""
import os

import pytest

import helpers
from helpers import affinities, write_file

ALL = os.sched_getaffinity(0)
REQUESTS = 2000  # of which every one of the threads that wait in the kernel gets its part


@pytest.fixture
def processors():
    if len(ALL) < 2:
        pytest.skip("there is one processor")
    yield sorted(ALL)[:2]
    os.sched_setaffinity(0, ALL)


def bound(mounted):
    """The processors of those threads that may run on one only."""
    return {cpu for allowed in affinities(mounted.pid) if len(allowed) == 1 for cpu in allowed}


def ask(mounted):
    for _ in range(REQUESTS):
        os.stat(f"{mounted.mnt}/f")


def test_threads_follow_a_caller(mount, processors):
    mounted = mount("timeout=0")
    write_file(f"{mounted.data}/f", b"")
    assert not bound(mounted)
    for cpu in processors * 2:
        os.sched_setaffinity(0, {cpu})
        # On a busy machine the next request may be there before a thread has gone to sleep.
        helpers.wait_until(lambda: ask(mounted) or cpu in bound(mounted), 20, f"on processor {cpu}")


def test_a_daemon_that_may_not_run_everywhere(mount, processors):
    """It does not leave the processors that it was given."""
    mine, its = processors
    mounted = mount("timeout=0", before=["taskset", "-c", str(its)])
    write_file(f"{mounted.data}/f", b"")
    os.sched_setaffinity(0, {mine})
    ask(mounted)
    assert bound(mounted) == {its}
