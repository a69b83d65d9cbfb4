/* SPDX-License-Identifier: Apache-2.0 */
/* What tests/run.sh has no time for: it sets GAIA_GATE (make check and make check-long do not). */
#ifndef GAIAFS_TESTS_GATE_H
#define GAIAFS_TESTS_GATE_H

#include <stdbool.h>
#include <stdlib.h>

static inline bool in_the_gate(void)
{
    const char *gate = getenv("GAIA_GATE");

    return gate && *gate;
}

/* How often a test does what it does at random: there, a quarter of it. */
static inline unsigned so_many(unsigned usual)
{
    return in_the_gate() ? (usual + 3) / 4 : usual;
}

#endif
