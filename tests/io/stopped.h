/* SPDX-License-Identifier: Apache-2.0 */
/* Sides that stand still, as of a process that is stopped: for longer than SHORT_MS at a signal; or as the
 * clock of all transports has it, which tests move, also just after one of a side's looks at what has come.
 * The latter for one side at a time. */
#ifndef GAIAFS_TESTS_IO_STOPPED_H
#define GAIAFS_TESTS_IO_STOPPED_H

#include "tests/io/transport_fixture.h"

#define LONG_MS 60000u /* of transports: no time goes by beside that of the clock that is moved */

/* The clock of all transports goes on, and nobody has looked. */
static inline void clock_on(uint64_t ms)
{
    transport_test.ahead_ns += ms * 1000000;
}

/* Time goes by, so many sixteenths of LONG_MS, and this side looks as often as it should. */
static inline void look_on(struct side *side, unsigned sixteenths)
{
    for (unsigned i = 0; i < sixteenths; i++) {
        clock_on(LONG_MS / 16 + 1);
        gaia_transport_poll(side->transport, 0);
    }
}

/* A listening side that nobody polls but the test. */
static inline void open_still(struct side *server, unsigned timeout_ms)
{
    side_init(server, true);
    const struct gaia_transport_config config = side_config(server, true, timeout_ms);
    must(gaia_transport_open(&config, &server->transport));
}

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
    clock_on(2 * LONG_MS);
    if (stopped.come)
        stopped.come();
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
