/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KILLS_STEPS_H
#define KILLS_STEPS_H

#include <stddef.h>
#include <stdint.h>

extern uint64_t random_state; /* not zero */
uint64_t random_number(uint64_t below);
uint64_t now(void); /* nanoseconds, the same clock in every process */

/* Stores and loads in memory that may raise SIGBUS: 0 or RESULT_SIGBUS. */
void catch_touches(void);
int store(volatile uint8_t *to, const uint8_t *from, size_t n);
int load(volatile uint8_t *from, size_t n, uint8_t *to);

/* OP_create and all after it: 0, or -1 with errno. */
int name_call(unsigned kind, const char *path, const char *other, const char *text);

#endif
