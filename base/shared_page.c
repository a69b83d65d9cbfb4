/* SPDX-License-Identifier: Apache-2.0 */
#include "base/shared_page.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory_file.h"
#include "base/proc_path.h"

mode_t shared_memory_mode(void)
{
    return geteuid() == 0 ? 0 : S_IRUSR | S_IWUSR;
}

/* A descriptor that is open for reading can't be opened anew for writing: clients can look, not lie. */
int shared_page_make(const char *name, void **page_out, int *fd_out)
{
    int fd = memory_file(name, 0);

    if (fd < 0)
        return -errno;
    int error = 0;
    if (ftruncate(fd, SHARED_PAGE_SIZE) || fchmod(fd, shared_memory_mode())) {
        error = -errno;
        goto out;
    }
    void *page = mmap(NULL, SHARED_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        error = -errno;
        goto out;
    }
    *fd_out = open(proc_path(fd).text, O_RDONLY | O_CLOEXEC);
    if (*fd_out < 0) {
        error = -errno;
        munmap(page, SHARED_PAGE_SIZE);
    } else {
        *page_out = page;
    }
out:
    close(fd);
    return error;
}

void *shared_page_look(int fd)
{
    void *page = mmap(NULL, SHARED_PAGE_SIZE, PROT_READ, MAP_SHARED, fd, 0);

    return page == MAP_FAILED ? NULL : page;
}
