/* SPDX-License-Identifier: Apache-2.0 */
/* See rules.h. What holds between calls, for every entry j: a device's v[j] <= home[j] <= released[j] (but
 * its own entry, which is ahead of the home's while it is pending), and home[j] < released[j] exactly when j
 * is pending. */
#include "consistency/rules.h"

#include <assert.h>
#include <string.h>

static size_t entry_of(const struct gaia_page_versions *page, uint32_t replica)
{
    size_t entry = gaia_version_entry(replica);

    assert(replica != GAIA_REPLICA_STORAGE);
    assert(entry < page->n);
    return entry;
}

void gaia_rule_release(struct gaia_page_versions *page, uint32_t replica, gaia_version *v)
{
    size_t entry = entry_of(page, replica);

    /* Also when it is pending already: nobody can tell here whether its bytes changed since. */
    page->released[entry]++;
    v[entry] = page->released[entry];
}

void gaia_rule_collected(struct gaia_page_versions *page, uint32_t replica)
{
    size_t entry = entry_of(page, replica);

    page->home[entry] = page->released[entry];
}

void gaia_rule_cpu_release(struct gaia_page_versions *page)
{
    size_t entry = entry_of(page, GAIA_REPLICA_CPU);

    page->released[entry]++;
    page->home[entry] = page->released[entry];
}

void gaia_rule_grant(const struct gaia_page_versions *page, gaia_version *v)
{
    /* Collected, or pending at the device itself: only its own vector has what the home's lacks. */
    for (size_t j = 0; j < page->n; j++)
        assert(page->home[j] == page->released[j] || v[j] == page->released[j]);
    memcpy(v, page->home, page->n * sizeof(*v));
}

bool gaia_rule_stale(const struct gaia_page_versions *page, uint32_t replica, const gaia_version *v)
{
    return !gaia_version_current_but(v, page->released, page->n, entry_of(page, replica));
}
