/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of docs/design.md, section 5, as functions over the versions of one page: what release, collect,
 * grant, acquire and a CPU write do to R, the home's vector and a device's vector. No bytes, no locks, no
 * allocation: the consistency manager (cache/) applies them under its locks, and tests/model has them again
 * in Promela. */
#ifndef GAIAFS_CONSISTENCY_RULES_H
#define GAIAFS_CONSISTENCY_RULES_H

#include <stdbool.h>
#include <stddef.h>

#include "consistency/version.h"

/* The versions of one page. The arrays belong to the caller; all have n entries. */
struct gaia_page_versions {
    gaia_version *released; /* R: how often each replica has released writes to the page */
    gaia_version *home;     /* V of the home copy */
    size_t n;               /* entries: 1 for the CPU + 1 for each device that takes part */
};

/* Rule 1: replica has released bytes of the page that differ from its twin; v is its own vector. Afterwards
 * the page is pending at that replica: home[replica] < released[replica]. */
void gaia_rule_release(struct gaia_page_versions *page, uint32_t replica, gaia_version *v);

/* Rule 2: the home copy now includes everything that replica has released. */
void gaia_rule_collected(struct gaia_page_versions *page, uint32_t replica);

/* Rules 4 and 5: the CPU wrote the page since the last acquire of anybody; its writes are in the home copy
 * already. */
void gaia_rule_cpu_release(struct gaia_page_versions *page);

/* Rule 3: a device gets a copy of the home's bytes; its vector v becomes the home's.
 * Nothing may be pending at any replica but the device itself (asserted). */
void gaia_rule_grant(const struct gaia_page_versions *page, gaia_version *v);

/* Rule 5: whether a device's copy with vector v lacks something that was released. Its own entry does not
 * count: its bytes include its own stores, collected or not. */
bool gaia_rule_stale(const struct gaia_page_versions *page, uint32_t replica, const gaia_version *v);

#endif
