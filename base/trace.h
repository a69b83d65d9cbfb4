/* SPDX-License-Identifier: Apache-2.0 */
/* Static tracepoints (USDT): a no-op and an ELF note each, which perf, bpftrace and SystemTap turn on while
 * the program runs (<sys/sdt.h>, of Debian's systemtap-sdt-dev). Without that header there are none. */
#ifndef GAIAFS_BASE_TRACE_H
#define GAIAFS_BASE_TRACE_H

#if __has_include(<sys/sdt.h>)
#define SDT_USE_VARIADIC 1
#include <sys/sdt.h>
/* Arguments are whole numbers, and cheap: they are at hand also while nobody looks. */
#define TRACE(name, ...) STAP_PROBEV(gaiafs, name, __VA_ARGS__)
#else
static inline void trace_nobody(int none, ...)
{
    (void)none;
}
#define TRACE(name, ...) trace_nobody(0, __VA_ARGS__)
#endif

#endif
