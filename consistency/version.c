/* SPDX-License-Identifier: Apache-2.0 */
/* See version.h. Counters are compared by the sign of their difference, so that they may wrap: v is behind r
 * when v - r, taken modulo 2^32, is in the upper half of the numbers. Why that is right: both count the
 * releases of one page by one replica, R goes up by one at a time, and every other vector holds a value that
 * R had at some earlier time. So r - v is how many releases the copy lags behind, and it is read wrongly only
 * from 2^31 on. For that, a copy would have to be kept, without one acquire, through 2^31 releases of the
 * same page by one other replica: a release is a round trip to the home, so at 10 us each that takes six
 * hours without a pause. */
#include "consistency/version.h"

/* The sign bit of the difference: set when v is behind r. */
static inline gaia_version behind(gaia_version v, gaia_version r)
{
    return (v - r) >> 31;
}

bool gaia_version_current(const gaia_version *v, const gaia_version *r, size_t n)
{
    gaia_version any = 0;

    /* Nearly every copy that is asked about is current, so no early way out: the loop has no branch but its
     * end. */
    for (size_t j = 0; j < n; j++)
        any |= behind(v[j], r[j]);
    return !any;
}

bool gaia_version_current_but(const gaia_version *v, const gaia_version *r, size_t n, size_t skip)
{
    size_t after = skip + 1;

    if (skip >= n)
        return gaia_version_current(v, r, n);
    return gaia_version_current(v, r, skip) && gaia_version_current(v + after, r + after, n - after);
}
