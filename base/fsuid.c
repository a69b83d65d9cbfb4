/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fsuid.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BIT(capability) (UINT64_C(1) << (capability))
/* What setfsuid() takes from who leaves uid 0, and gives to who comes back (`carries`). */
#define OVER_FILES                                                                                           \
    (BIT(CAP_CHOWN) | BIT(CAP_DAC_OVERRIDE) | BIT(CAP_DAC_READ_SEARCH) | BIT(CAP_FOWNER) | BIT(CAP_FSETID) | \
     BIT(CAP_LINUX_IMMUTABLE) | BIT(CAP_MKNOD) | BIT(CAP_MAC_OVERRIDE))

static struct __user_cap_data_struct own[_LINUX_CAPABILITY_U32S_3];
static bool is_root;
static atomic_bool spares_threads;
static bool carries; /* else without CAP_SETUID, or by a securebit, all stay as they are */

static __thread struct fsuid acting = {(uid_t)-1, true}, writes_for = {(uid_t)-1, true};
static __thread bool begun;       /* before, the thread has what its maker had */
static __thread uint64_t taken;   /* of the capabilities in effect */
static __thread uint64_t dropped; /* of these, by fsuid_drop_capabilities() */

void fsuid_init(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};

    if (syscall(SYS_capget, &header, own))
        memset(own, 0, sizeof(own));
    is_root = geteuid() == 0;
    int bits = prctl(PR_GET_SECUREBITS);
    carries = fsuid_is_capable(CAP_SETUID) && !(bits > 0 && bits & SECBIT_NO_SETUID_FIXUP);
}

bool fsuid_is_capable(unsigned capability)
{
    return own[CAP_TO_INDEX(capability)].effective & CAP_TO_MASK(capability);
}

static uint64_t effective(const struct __user_cap_data_struct *data)
{
    return (uint64_t)data[1].effective << 32 | data[0].effective;
}

/* What it has from its maker. To ask changes nothing: see fsuid_spare_threads(). */
static void begin(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

    begun = true;
    if (!syscall(SYS_capget, &header, data))
        taken = effective(own) & ~effective(data);
}

static int take(uint64_t mask)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

    memcpy(data, own, sizeof(data));
    data[0].effective &= ~(uint32_t)mask;
    data[1].effective &= ~(uint32_t)(mask >> 32);
    if (syscall(SYS_capset, &header, data))
        return -errno;
    taken = mask;
    return 0;
}

static uid_t number_of(struct fsuid who)
{
    return who.uid == (uid_t)-1 ? 0 : who.uid;
}

/* While it acts for nobody the thread keeps CAP_SYS_RESOURCE, or not, as the last one left it: what the
 * daemon does for itself takes no room, and users come one after the other. */
static uint64_t to_take(struct fsuid who)
{
    uint64_t resource = who.uid == (uid_t)-1 ? taken & BIT(CAP_SYS_RESOURCE)
                        : who.uid == 0       ? 0
                                             : BIT(CAP_SYS_RESOURCE);

    return (dropped | resource | (number_of(who) && !who.privileged ? OVER_FILES : 0)) & effective(own);
}

int fsuid_set(struct fsuid who)
{
    int error = 0;
    uid_t from = number_of(acting), to = number_of(who);

    if (!is_root || (who.uid == acting.uid && who.privileged == acting.privileged))
        return 0;
    if (!begun)
        begin();
    acting = who;
    if (from != to) {
        syscall(SYS_setfsuid, to);
        if (carries)
            taken = !to ? taken & ~OVER_FILES : !from ? taken | (OVER_FILES & effective(own)) : taken;
    }
    uint64_t mask = to_take(who);
    if (mask != taken)
        error = take(mask);
    return error;
}

void fsuid_spare_threads(void)
{
    spares_threads = true;
}

void fsuid_write_for(struct fsuid who)
{
    writes_for = who;
}

void fsuid_begin_write_of_owner(int fd)
{
    struct stat st;

    if (is_root && !spares_threads && !fstat(fd, &st))
        fsuid_set((struct fsuid){st.st_uid, true});
}

void fsuid_begin_write(int fd)
{
    if (writes_for.uid == (uid_t)-1)
        fsuid_begin_write_of_owner(fd);
    else
        fsuid_set(writes_for);
}

void fsuid_end_write(void)
{
    int error = errno;

    fsuid_set(FSUID_SELF);
    errno = error;
}

int fsuid_drop_capabilities(uint64_t mask)
{
    if (!begun)
        begin();
    dropped = mask;
    mask = to_take(acting);
    return mask == taken ? 0 : take(mask);
}
