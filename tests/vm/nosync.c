/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded into the daemon with LD_PRELOAD: a daemon whose syncs do nothing, which tests/vm/power.py must find
 * out. */
int fsync(int fd);
int fdatasync(int fd);

int fsync(int fd)
{
    (void)fd;
    return 0;
}

int fdatasync(int fd)
{
    (void)fd;
    return 0;
}
