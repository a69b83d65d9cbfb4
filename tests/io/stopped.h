/* SPDX-License-Identifier: Apache-2.0 */
/* A side that stands still for longer than SHORT_MS, as of a process that is stopped: at a signal, or just
 * after one of its looks at what has come. For one side at a time. */
#ifndef GAIAFS_TESTS_IO_STOPPED_H
#define GAIAFS_TESTS_IO_STOPPED_H

#include "tests/io/transport_fixture.h"

static struct {
    struct carrier carrier;
    void (*glance)(struct gaia_transport *transport); /* the real one */
    int looks;                                        /* until then; negative: it has stood still */
    void (*come)(void);                               /* something that comes meanwhile, or NULL */
} stopped;

static inline void stand_still(int signal_number)
{
    (void)signal_number;
    nap_ms(SHORT_MS + SHORT_MS / 4);
}

static inline void glance_and_stand_still(struct gaia_transport *transport)
{
    stopped.glance(transport);
    if (stopped.looks--)
        return;
    if (stopped.come)
        stopped.come();
    stand_still(0);
}

/* Nobody polls it but the test. */
static inline void stop_after(struct side *side, int look, void (*come)(void))
{
    stopped.carrier = *side->transport->carrier;
    stopped.glance = stopped.carrier.glance;
    stopped.carrier.glance = glance_and_stand_still;
    stopped.looks = look;
    stopped.come = come;
    side->transport->carrier = &stopped.carrier;
}

#endif
